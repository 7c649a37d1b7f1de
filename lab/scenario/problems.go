package scenario

import (
	"regexp"
	"slices"
	"strings"

	"github.com/detour-collective/dcol/internal/tomlfile"
)

// problems collects the mistakes in a file, by the paths of its keys.
type problems struct {
	report func(path, format string, args ...any)
}

// name reports a name that does not match form. says describes the form.
func (p problems) name(path, name string, form *regexp.Regexp, says string) {
	switch {
	case name == "":
		p.report(path, "is missing; %s", says)
	case !form.MatchString(name):
		p.report(path, "%q is not a name; %s", name, says)
	}
}

// unique reports a name that was seen before.
func (p problems) unique(path, name string, seen map[string]bool) {
	if name != "" && seen[name] {
		p.report(path, "%q is taken; every name must be different", name)
	}
	seen[name] = true
}

// known reports a name that is not declared.
func (p problems) known(path, name, what string, declared []string) bool {
	switch {
	case slices.Contains(declared, name):
		return true
	case name == "":
		p.report(path, "is missing; it names a %s: %s", what, list(declared))
	case len(declared) == 0:
		p.report(path, "there is no %s %q; none is declared", what, name)
	default:
		p.report(path, "there is no %s %q%s", what, name, tomlfile.Nearest(name, declared))
	}
	return false
}

func list(names []string) string {
	if len(names) == 0 {
		return "none is declared"
	}
	return strings.Join(names, ", ")
}

// oneOf reports a value that is not allowed.
func oneOf[T ~string](p problems, path string, value T, allowed ...T) bool {
	words := Words(allowed)
	switch {
	case slices.Contains(allowed, value):
		return true
	case value == "":
		p.report(path, "is missing; use %s", strings.Join(words, ", "))
	default:
		p.report(path, "%q is not one of %s%s", value, strings.Join(words, ", "), tomlfile.Suggestion(string(value), words))
	}
	return false
}

// Words returns values as they are written in files.
func Words[T ~string](values []T) []string {
	written := make([]string, len(values))
	for i, v := range values {
		written[i] = string(v)
	}
	return written
}
