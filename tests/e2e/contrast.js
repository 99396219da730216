// What stands out too little from its ground, by WCAG 2.2 AA: texts (1.4.3) and the edges of what is filled in (1.4.11).
() => {
  const parse = (text) => (text.match(/[\d.]+/g) || []).map(Number);
  const over = ([r, g, b, a = 1], below) => [r, g, b].map((one, at) => one * a + below[at] * (1 - a));
  const grounds = (at) => (at ? over(parse(getComputedStyle(at).backgroundColor), grounds(at.parentElement)) : [255, 255, 255]);
  const light = (rgb) => {
    const [r, g, b] = rgb.map((one) => one / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [more, less] = [light(one), light(other)].sort((a, b) => b - a);
    return (more + 0.05) / (less + 0.05);
  };
  const fades = (at) => (at ? Number(getComputedStyle(at).opacity) * fades(at.parentElement) : 1);
  const found = [];
  const judge = (what, one, colour, ground, least) => {
    const [r, g, b, a = 1] = parse(colour);
    const seen = contrast(over([r, g, b, a * fades(one)], ground), ground);
    if (seen < least) found.push(`${what} ${one.id || one.className.baseVal || one.className || one.tagName}: ${seen.toFixed(2)}`);
  };
  for (const one of document.querySelectorAll("body *")) {
    if (!one.checkVisibility() || one.closest(".unseen, .skip, :disabled, title, option")) continue;
    const style = getComputedStyle(one), isField = /^(INPUT|SELECT|BUTTON)$/.test(one.tagName);
    const says = [...one.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    const isSvg = one.namespaceURI.endsWith("svg");
    if (says || isField) judge("text", one, isSvg ? style.fill : style.color, grounds(isSvg ? one.closest("svg").parentElement : one), large ? 3 : 4.5);
    if (one.placeholder) judge("placeholder", one, getComputedStyle(one, "::placeholder").color, grounds(one), 4.5);
    if (isField && one.type !== "checkbox" && parseFloat(style.borderTopWidth)) {
      judge("edge", one, style.borderTopColor, grounds(one.parentElement), 3);
    }
  }
  return found;
}
