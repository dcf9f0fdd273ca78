// The token: stored for this tab's session only; asked for when the server needs one.
import { button, h } from './dom.js';

const KEY = 'domino_tune.token';
let asking = null, declined = false;

export const token = () => sessionStorage.getItem(KEY) ?? '';
const changed = () => document.dispatchEvent(new Event('token'));
export const forgetToken = () => { sessionStorage.removeItem(KEY); changed(); };

/** Ask for a token in one dialog; return whether the user gave one. After a refusal do not ask again
    before `mayAskAgain`. */
export const askToken = async why => {
  if (declined) return false;
  asking ??= ask(why).finally(() => { asking = null; });
  const given = await asking;
  declined = !given;
  return given;
};
export const mayAskAgain = () => { declined = false; };

const ask = why => new Promise(answer => {
  const before = document.activeElement;
  const field = h('input', { id: 'token', type: 'password', autocomplete: 'off', spellcheck: 'false', required: true,
    placeholder: 'dt_…', 'aria-describedby': 'token-why' });
  const dialog = h('dialog', { class: 'token', 'aria-labelledby': 'token-title' },
    h('form', { method: 'dialog', onsubmit: () => sessionStorage.setItem(KEY, field.value.trim()) },
      h('h2', { id: 'token-title' }, 'This server asks for a token'),
      h('p', { id: 'token-why', class: why ? 'error' : 'note', role: why ? 'alert' : null },
        why || ['Whoever runs it makes one with ', h('code', {}, 'python -m domino_tune tokens add'),
          '. It is kept until this tab closes.']),
      h('label', { for: 'token' }, 'Token'), field,
      h('div', { class: 'row' }, h('button', { class: 'primary', value: 'given' }, 'Go on'),
        button('Not now', () => dialog.close('')))));
  dialog.addEventListener('close', () => {
    dialog.remove();
    before?.focus?.();
    changed();
    answer(dialog.returnValue === 'given' && token() !== '');
  });
  document.body.append(dialog);
  dialog.showModal();
});
