// Labels that a reader gives to jobs; they stay in this browser.
const KEY = 'domino_tune.labels';

const all = () => {
  try {
    const found = JSON.parse(localStorage.getItem(KEY));
    return found && typeof found === 'object' ? found : {};
  } catch { return {}; }  // no storage, or not ours: then there are no labels
};

export const labelOf = id => String(all()[id] ?? '');

/** Keep a job's label; an empty one is forgotten. Return whether this browser keeps it. */
export const keepLabel = (id, text) => {
  const { [id]: _, ...others } = all(), kept = text ? { ...others, [id]: text } : others;
  try {
    if (Object.keys(kept).length) localStorage.setItem(KEY, JSON.stringify(kept)); else localStorage.removeItem(KEY);
    return true;
  } catch { return false; }
};
