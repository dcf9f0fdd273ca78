// Requests to this server: the token, problems as errors, lists, events by fetch.
import { askToken, token } from './token.js';

/** An error with the server's problem; `status` 0: no answer. */
export class Problem extends Error {
  constructor(status, { title = '', detail = '', errors = [], change = null } = {}, retryAfter = 0) {
    super(detail || title || `The server answered ${status}.`);
    Object.assign(this, { status, title, errors, change, retryAfter });
  }
}

const problemOf = async response => {
  let said = {};
  try { said = await response.json(); } catch { /* no problem document: the status is enough */ }
  return new Problem(response.status, said && typeof said === 'object' ? said : {},
    Number(response.headers.get('retry-after')) || 0);
};

const attempt = async (path, { method, body, headers, signal }) => {
  const sent = token();
  const head = { ...headers, ...(sent && { authorization: `Bearer ${sent}` }),
    ...(body !== undefined && { 'content-type': 'application/json' }) };
  try {
    const response = await fetch(new URL(path, document.baseURI), {
      method, headers: head, signal, cache: 'no-store', credentials: 'omit',
      body: typeof body === 'object' ? JSON.stringify(body) : body,
    });
    return { response, sent };
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Problem(0, { detail: 'The server cannot be reached. It may be restarting; try again.' });
  }
};

/** Return the response; throw Problem unless it is 2xx. After a 401 ask for a token and try again.
    A text `body` is already JSON. */
export const request = async (path, { method = 'GET', body, headers = {}, signal } = {}) => {
  for (;;) {
    const { response, sent } = await attempt(path, { method, body, headers, signal });
    if (response.ok) return response;
    const problem = await problemOf(response);
    if (response.status !== 401) throw problem;
    if (token() === sent && !(await askToken(sent ? problem.message : ''))) throw problem;
  }
};

export const get = async (path, options) => (await request(path, options)).json();
export const getText = async (path, options) => (await request(path, options)).text();
export const post = async (path, body, options = {}) => (await request(path, { ...options, method: 'POST', body })).json();
export const patch = async (path, body, options) => (await request(path, { ...options, method: 'PATCH', body })).json();
export const remove = (path, options) => request(path, { ...options, method: 'DELETE' });

/** Return `{items, next}`: the first `limit` items of a list that match `query`, read `most` a page, and the cursor of
    the items after them, if there are any. */
export const first = async (path, { limit = 100, most = 100, query = {}, signal } = {}) => {
  const items = [];
  let next = null;
  do {
    const asked = new URLSearchParams({ ...query, limit: String(Math.min(most, limit - items.length)), ...(next && { cursor: next }) });
    const page = await get(`${path}?${asked}`, { signal });
    items.push(...page.items ?? page);
    next = page.next ?? null;
  } while (next && items.length < limit);
  return { items, next };
};
export const list = async (path, options) => (await first(path, options)).items;

/** Return a new Idempotency-Key. Browsers offer crypto.randomUUID only on https and localhost. */
export const newKey = () => [...crypto.getRandomValues(new Uint8Array(16))]
  .map(byte => byte.toString(16).padStart(2, '0')).join('');

const parseEvent = block => {
  const event = { type: 'message', data: '', id: null };
  for (const line of block.split(/\r\n|\r|\n/)) {
    const [, field, value] = /^([a-z]+):? ?(.*)$/.exec(line) ?? [];
    if (field === 'event') event.type = value;
    if (field === 'id') event.id = value;
    if (field === 'data') event.data += (event.data ? '\n' : '') + value;
  }
  return event;
};

/** Yield the server-sent events of `path`. EventSource cannot send a token, so fetch reads them. */
export const events = async function* (path, { signal, lastId } = {}) {
  const headers = { accept: 'text/event-stream', ...(lastId && { 'last-event-id': lastId }) };
  const response = await request(path, { headers, signal });
  if (!response.body) return;  // 204: the job is over, no event follows
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (waiting + value).split(/\r\n\r\n|\n\n|\r\r/);
    waiting = blocks.pop();
    for (const block of blocks) {
      const event = parseEvent(block);
      if (event.data) yield event;
    }
  }
};
