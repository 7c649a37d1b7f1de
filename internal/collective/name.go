package collective

import "fmt"

// CheckName says whether a member may be called so: a DNS label (RFC 1123) in lower case, because the
// name stands in certificates as a DNS name and in file names.
func CheckName(name string) error {
	const mend = "use 1 to 63 of a-z, 0-9 and '-', neither first nor last a '-'"
	if name == "ca" {
		return fmt.Errorf("the name %q is the authority's own: choose another", name)
	}
	if len(name) == 0 || len(name) > 63 {
		return fmt.Errorf("the name %q has %d characters: %s", name, len(name), mend)
	}
	for i, c := range []byte(name) {
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		case c == '-' && i > 0 && i < len(name)-1:
		default:
			return fmt.Errorf("the name %q has %q at position %d: %s", name, c, i+1, mend)
		}
	}
	return nil
}
