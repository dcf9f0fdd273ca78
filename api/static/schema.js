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

/** Return an operation's body: its `type`, JSON or else the first, `schema` and example; null without body. */
export const bodyOf = (spec, operation) => {
  const content = operation.requestBody?.content ?? {};
  const type = content['application/json'] ? 'application/json' : Object.keys(content)[0];
  return type ? { type, schema: {}, ...content[type] } : null;
};

/** Return a type as short text: `integer`, `string[]`, `Plan | null`. */
export const typeWords = (spec, schema) => {
  const here = shape(spec, schema);
  const name = schema?.$ref?.split('/').pop();
  const one = name ?? (here.enum ? here.enum.map(value => JSON.stringify(value)).join(' | ')
    : here.variants ? here.variants.map(option => option.title ?? option.type).join(' | ')
      : here.type === 'array' ? `${typeWords(spec, here.items ?? {})}[]` : here.type ?? 'any');
  return here.nullable ? `${one} | null` : one;
};
