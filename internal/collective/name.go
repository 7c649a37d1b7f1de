package collective

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxCollective is the maximum length in bytes of a collective's name, which is part of every record and invitation.
const maxCollective = 128

// CheckCollective checks a collective's name. It allows words of any script, but nothing that looks like a path,
// an option or a command.
func CheckCollective(name string) error {
	const (
		others = " -_.,'&+()!"
		fix    = "use letters, digits, single spaces and any of -_.,'&+()!, and begin with a letter or a digit"
	)
	switch {
	case name == "":
		return fmt.Errorf("the collective needs a name of at most %d bytes", maxCollective)
	case len(name) > maxCollective:
		return fmt.Errorf("the collective's name has %d bytes: 1 to %d", len(name), maxCollective)
	case !utf8.ValidString(name):
		return fmt.Errorf("the collective's name %q is not UTF-8: %s", name, fix)
	case strings.HasSuffix(name, " ") || strings.Contains(name, "  "):
		return fmt.Errorf("the collective's name %q has leading, trailing or double spaces: %s", name, fix)
	}
	for i, c := range name {
		word := unicode.IsLetter(c) || unicode.IsDigit(c)
		if !word && (i == 0 || !unicode.IsMark(c) && !strings.ContainsRune(others, c)) {
			return fmt.Errorf("the collective's name %q has %q at position %d: %s", name, c, utf8.RuneCountInString(name[:i])+1, fix)
		}
	}
	return nil
}

// CheckName checks a member's name. It must be a DNS label (RFC 1123) in lower case, because it is used as a DNS
// name in certificates, and in file names.
func CheckName(name string) error {
	const fix = "use 1 to 63 characters a-z, 0-9 and '-', and begin and end with a letter or digit"
	if name == "ca" || name == "signer" { // its files would be those of the authority
		return fmt.Errorf("the name %q is the authority's own: choose another", name)
	}
	if len(name) == 0 || len(name) > 63 {
		return fmt.Errorf("the name %q has %d characters: %s", name, len(name), fix)
	}
	for i, c := range name {
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		case c == '-' && i > 0 && i < len(name)-1:
		default:
			return fmt.Errorf("the name %q has %q at position %d: %s", name, c, i+1, fix)
		}
	}
	return nil
}
