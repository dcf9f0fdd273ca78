// OpenAPI's schemas, resolved as far as the form and the docs need.
const follow = (spec, schema) => {
  let here = schema ?? {};
  while (here.$ref) {
    const { $ref, ...beside } = here;
    const keys = $ref.slice(2).split('/').map(key => key.replaceAll('~1', '/').replaceAll('~0', '~'));
    here = { ...keys.reduce((at, key) => at?.[key], spec), ...beside };
  }
  return here.allOf?.length === 1 ? { ...follow(spec, here.allOf[0]), ...here, allOf: undefined } : here;
};

/** Return a schema without references, with `nullable` where null is allowed. */
export const shape = (spec, schema) => {
  const here = follow(spec, schema);
  const options = (here.anyOf ?? here.oneOf)?.map(option => follow(spec, option));
  if (!options) return Array.isArray(here.type)
    ? { ...here, type: here.type.find(type => type !== 'null'), nullable: here.type.includes('null') }
    : 'const' in here ? { ...here, enum: [here.const] } : here;
  const real = options.filter(option => option.type !== 'null');
  if (real.length !== 1) return { ...here, variants: real };
  return { ...shape(spec, real[0]), ...here, anyOf: undefined, oneOf: undefined, nullable: real.length < options.length };
};

/** Return an operation's body: `{type, schema}` of JSON, else of its first type; null without body. */
export const bodyOf = (spec, operation) => {
  const content = operation.requestBody?.content ?? {};
  const type = content['application/json'] ? 'application/json' : Object.keys(content)[0];
  return type ? { type, schema: content[type].schema ?? {} } : null;
};

const depth = 5;

/** Return a type as short text: `integer`, `string[]`, `Plan | null`. */
export const typeWords = (spec, schema) => {
  const here = shape(spec, schema);
  const name = schema?.$ref?.split('/').pop();
  const one = name ?? (here.enum ? here.enum.map(value => JSON.stringify(value)).join(' | ')
    : here.variants ? here.variants.map(option => option.title ?? option.type).join(' | ')
      : here.type === 'array' ? `${typeWords(spec, here.items ?? {})}[]` : here.type ?? 'any');
  return here.nullable ? `${one} | null` : one;
};

/** Return an example of a schema: its own one, its default, else its least value. */
export const example = (spec, schema, level = 0) => {
  const here = shape(spec, schema);
  if (here.example !== undefined) return here.example;
  if (here.examples?.length) return here.examples[0];
  if (here.default !== undefined && here.default !== null) return here.default;
  if (here.enum) return here.enum[0];
  if (here.variants) return example(spec, here.variants[0], level + 1);
  if (level > depth) return null;
  if (here.type === 'object' || here.properties) {
    return Object.fromEntries(Object.entries(here.properties ?? {})
      .filter(([name]) => (here.required ?? []).includes(name) || level === 0)
      .map(([name, inner]) => [name, example(spec, inner, level + 1)]));
  }
  if (here.type === 'array') return here.minItems ? [example(spec, here.items, level + 1)] : [];
  return { integer: here.minimum ?? 1, number: here.minimum ?? 0, boolean: false, string: '' }[here.type] ?? null;
};
