package campaign

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// maxName is the longest name of a host (RFC 1035), and maxLine the longest line of a list.
const (
	maxName = 253
	maxLine = 4096
)

// ReadList reads destinations: an address or a name each line. What follows a # is a comment. Each is kept once, in the
// order of the list. The error names the line.
func ReadList(r io.Reader) (names []string, err error) {
	seen := map[string]bool{}
	err = eachLine(r, func(text string) error {
		name := strings.ToLower(strings.TrimSuffix(text, "."))
		if _, err := netip.ParseAddr(name); err != nil && !isName(name) {
			return fmt.Errorf("%q is no address and no name", text)
		}
		if !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
		return nil
	})
	return names, err
}

// isName reports whether a text may be the name of a host.
func isName(text string) bool {
	if text == "" || len(text) > maxName {
		return false
	}
	for label := range strings.SplitSeq(text, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range []byte(label) {
			if c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
				return false
			}
		}
	}
	return true
}

// RefusalsFile has those who asked this host not to probe them, for every campaign.
const RefusalsFile = "/etc/dcol/trace-refusals"

// Refusals are those who asked not to be probed.
type Refusals struct {
	prefixes []netip.Prefix
	names    map[string]bool
}

// HostRefusals reads RefusalsFile, and more text of the same form. A missing file is an empty one.
func HostRefusals(more []byte) (Refusals, error) {
	text, err := os.ReadFile(RefusalsFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Refusals{}, err
	}
	all, err := ReadRefusals(bytes.NewReader(slices.Concat(text, []byte("\n"), more)))
	if err != nil {
		return all, fmt.Errorf("those who are not to be probed: %w", err)
	}
	return all, nil
}

// ReadRefusals reads addresses, prefixes and names, one each line, with comments as in a list. A name stands for those
// below it, too.
func ReadRefusals(r io.Reader) (all Refusals, err error) {
	all.names = map[string]bool{}
	err = eachLine(r, func(text string) error {
		name := strings.ToLower(strings.Trim(text, "."))
		if addr, err := netip.ParseAddr(name); err == nil {
			all.prefixes = append(all.prefixes, netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen()))
			return nil
		}
		if prefix, err := netip.ParsePrefix(name); err == nil {
			all.prefixes = append(all.prefixes, prefix.Masked())
			return nil
		}
		if !isName(name) {
			return fmt.Errorf("%q is no address, prefix or name", text)
		}
		all.names[name] = true
		return nil
	})
	return all, err
}

// Len returns the number of destinations.
func (r *Refusals) Len() int { return len(r.prefixes) + len(r.names) }

// Name reports whether a destination asked not to be probed, by its name.
func (r *Refusals) Name(name string) bool {
	for name != "" {
		if r.names[name] {
			return true
		}
		_, name, _ = strings.Cut(name, ".")
	}
	return false
}

// Addr reports whether a destination asked not to be probed, by its address.
func (r *Refusals) Addr(addr netip.Addr) bool {
	for _, p := range r.prefixes {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

// eachLine calls take with each line that has something, without comments.
func eachLine(r io.Reader, take func(string) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, maxLine), maxLine)
	number := 0
	for lines.Scan() {
		number++
		text, _, _ := strings.Cut(lines.Text(), "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		if err := take(text); err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("line %d: %w", number+1, err)
	}
	return nil
}
