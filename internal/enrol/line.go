package enrol

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

// linePrefix begins every line of this version.
const linePrefix = "dcol1-"

// Limits of a line, which must be short enough for a chat message and a terminal.
const (
	maxLine         = 2048 // characters
	maxCoordinators = 8
	checkSize       = 4
)

// Secret identifies an invitation.
type Secret [16]byte

// NewSecret returns a random secret.
func NewSecret() (s Secret) {
	rand.Read(s[:]) // never fails (crypto/rand)
	return s
}

// MarshalText implements encoding.TextMarshaler.
func (s Secret) MarshalText() ([]byte, error) {
	return base64.RawURLEncoding.AppendEncode(nil, s[:]), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Secret) UnmarshalText(text []byte) error {
	b, err := base64.RawURLEncoding.Strict().DecodeString(string(text))
	if err != nil || len(b) != len(s) {
		return fmt.Errorf("a secret of %d characters is malformed", len(text))
	}
	*s = Secret(b)
	return nil
}

// Line is an invitation as text: everything a host needs to join a collective.
type Line struct {
	Collective   string
	Coordinators []Endpoint // tried one after the other
	Root         [32]byte   // SHA-256 of a root's certificate (DER)
	Secret       Secret
	Expires      time.Time // to the second
	Name         string    // of the new member; empty: it chooses
}

// HashRoot returns the hash of a root that a line holds.
func HashRoot(der []byte) [32]byte { return sha256.Sum256(der) }

// A line is the prefix and, in base64url, a checksum and these fields: root; secret; expiry, as seconds since 1970 in
// eight bytes (big endian); the collective's name; the member's name; the number of coordinators, in one byte; and the
// name and address of each. Names and addresses have their length before them, in one byte. There is one way to write a
// line.

// String returns the line as text. Check must have accepted it.
func (l Line) String() string {
	var b []byte
	b = append(b, l.Root[:]...)
	b = append(b, l.Secret[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(l.Expires.Unix()))
	text := func(s string) { b = append(append(b, byte(len(s))), s...) }
	text(l.Collective)
	text(l.Name)
	b = append(b, byte(len(l.Coordinators)))
	for _, c := range l.Coordinators {
		text(c.Name)
		text(c.Address)
	}
	sum := lineSum(b)
	return linePrefix + base64.RawURLEncoding.EncodeToString(append(sum[:], b...))
}

// lineSum returns the checksum, by which a mistyped or truncated line is found before anything is sent. It does not
// protect against intent.
func lineSum(fields []byte) [checkSize]byte {
	sum := sha256.Sum256(append([]byte("dcol join 1\n"), fields...))
	return [checkSize]byte(sum[:])
}

// Check returns an error if a field has a value that it cannot have.
func (l Line) Check() error {
	if err := collective.CheckCollective(l.Collective); err != nil {
		return err
	}
	if l.Name != "" {
		if err := collective.CheckName(l.Name); err != nil {
			return err
		}
	}
	if n := len(l.Coordinators); n == 0 || n > maxCoordinators {
		return fmt.Errorf("an invitation must name 1 to %d coordinators, not %d", maxCoordinators, n)
	}
	for _, c := range l.Coordinators {
		if err := c.Check(); err != nil {
			return err
		}
	}
	if year := l.Expires.UTC().Year(); l.Expires.Unix() < 0 || year > 9999 {
		return fmt.Errorf("it expires in the year %d", year)
	}
	return nil
}

const lineFix = "copy the whole line that dcol invite printed"

// errLine is returned for any fault of a line's text.
var errLine = errors.New("not a complete invitation")

// IsLine reports whether a text begins like a line.
func IsLine(text string) bool { return strings.HasPrefix(strings.TrimSpace(text), linePrefix) }

// ParseLine parses what String has returned. It ignores white space, which terminals and mail programs insert.
func ParseLine(text string) (Line, error) {
	bad := func(format string, args ...any) (Line, error) {
		return Line{}, fmt.Errorf("join: %w: %w; %s", errLine, fmt.Errorf(format, args...), lineFix)
	}
	if len(text) > 2*maxLine {
		return bad("it has %d characters", len(text))
	}
	text = strings.Join(strings.Fields(text), "")
	body, ok := strings.CutPrefix(text, linePrefix)
	if !ok {
		return bad("it does not begin with %q", linePrefix)
	}
	if len(text) > maxLine {
		return bad("it has %d characters, at most %d", len(text), maxLine)
	}
	data, err := base64.RawURLEncoding.Strict().DecodeString(body)
	if err != nil || len(data) < checkSize {
		return bad("a character is wrong or missing")
	}
	fields := data[checkSize:]
	if sum := lineSum(fields); !bytes.Equal(sum[:], data[:checkSize]) {
		return bad("its checksum is wrong")
	}
	l, err := parseFields(fields)
	if err == nil {
		err = l.Check()
	}
	if err != nil {
		return bad("%w", err)
	}
	return l, nil
}

// parseFields parses fields whose checksum is right.
func parseFields(b []byte) (Line, error) {
	cut := func(n int) []byte {
		if b == nil || n > len(b) {
			b = nil
			return make([]byte, n)
		}
		head := b[:n]
		b = b[n:]
		return head
	}
	text := func() string { return string(cut(int(cut(1)[0]))) }
	l := Line{Root: [32]byte(cut(32)), Secret: Secret(cut(16))}
	l.Expires = time.Unix(int64(binary.BigEndian.Uint64(cut(8))), 0).UTC()
	l.Collective, l.Name = text(), text()
	for range cut(1)[0] {
		l.Coordinators = append(l.Coordinators, Endpoint{Name: text(), Address: text()})
	}
	if b == nil || len(b) > 0 {
		return Line{}, errors.New("it does not have the fields of an invitation")
	}
	return l, nil
}
