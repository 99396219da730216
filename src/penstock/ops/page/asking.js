// Questions to the running deployment, which serves this page and knows this browser by its cookie.

// An answer that says no: `status` as HTTP has it, `hint` what to do.
class Refused extends Error {
  constructor(status, said) {
    super(said.error || "It does not answer.");
    this.status = status;
    this.hint = said.hint || "";
  }
}

// Its answer to GET, or with a body to POST.
export async function ask(path, body) {
  const how = { cache: "no-store", credentials: "same-origin" };
  if (body) {
    const headers = { "Content-Type": "application/json" };
    Object.assign(how, { method: "POST", headers, body: JSON.stringify(body) });
  }
  const answer = await fetch(path, how);
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, said);
  return said;
}

export const sentence = (error) => `${error.message}. ${error.hint || ""}`;

// Let this browser in by a link's code or the token; what stands in the way, or nothing.
export async function enter(secret) {
  try {
    await ask("/session", { secret });
    return "";
  } catch (error) {
    return sentence(error);
  }
}
