// Light, dark, or as the system says; remembered in this browser.
import { signal } from "./lib.js";

const KEY = "anabranch-theme";
const CHOICES = ["auto", "light", "dark"];
const system = matchMedia("(prefers-color-scheme: dark)");

function stored() {
  const value = localStorage.getItem(KEY);
  return CHOICES.includes(value) ? value : "auto";
}

export const choice = signal(stored());
/** What is shown now: light or dark. */
export const theme = signal("light");

function apply() {
  const dark = choice.value === "dark" || (choice.value === "auto" && system.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  theme.value = dark ? "dark" : "light";
}

export function nextTheme() {
  choice.value = CHOICES[(CHOICES.indexOf(choice.value) + 1) % CHOICES.length];
  localStorage.setItem(KEY, choice.value);
  apply();
}

system.addEventListener("change", apply);
apply();
