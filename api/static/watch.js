// Follow a job until it is over: read its events, and get the job again when the stream breaks.
import { events, get, Problem } from './api.js';
import { over } from './words.js';

export const rest = (seconds, signal) => new Promise((go, stop) => {
  const left = () => { clearTimeout(timer); stop(new DOMException('left', 'AbortError')); };
  const timer = setTimeout(() => { signal?.removeEventListener('abort', left); go(); }, 1000 * seconds);
  if (signal?.aborted) left(); else signal?.addEventListener('abort', left, { once: true });
});

/** Call `see(job)` with each state of the job at `path`; resolve with the whole last one. */
export const watch = async (path, see, signal) => {
  let job = await get(path, { signal }), lastId = null, failures = 0;
  see(job);
  while (!over(job.state)) {
    try {
      for await (const event of events(`${path}/events`, { signal, lastId })) {
        lastId = event.id ?? lastId;
        failures = 0;
        const said = JSON.parse(event.data);
        if (!said || typeof said !== 'object') continue;
        job = { ...job, ...said };
        if (over(job.state)) break;
        see(job);
      }
    } catch (problem) {
      if (!(problem instanceof Problem || problem instanceof TypeError || problem instanceof SyntaxError)) throw problem;
      if (problem.status === 401 || problem.status === 403 || problem.status === 404) throw problem;
      await rest(Math.max(problem.retryAfter ?? 0, Math.min(8, 2 ** failures++)), signal);
    }
    job = await freshJob(path, job, signal);
    if (!over(job.state)) { see(job); await rest(0.3, signal); }
  }
  see(job);
  return job;
};

// Get the job; while the server restarts, return the known state.
const freshJob = async (path, known, signal) => {
  try {
    return await get(path, { signal });
  } catch (problem) {
    if (!(problem instanceof Problem) || (problem.status && problem.status < 500)) throw problem;
    return { ...known, state: over(known.state) ? 'running' : known.state };
  }
};
