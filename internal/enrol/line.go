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

// linePrefix begins every line; another version has another.
const linePrefix = "dcol1-"

// What a line may hold. It must be short enough to be sent in a message and pasted into a terminal.
const (
	maxLine         = 2048 // characters
	maxCoordinators = 8
	checkSize       = 4
)

// Secret is what the coordinator knows an invitation by.
type Secret [16]byte

// NewSecret makes one.
func NewSecret() (s Secret) {
	rand.Read(s[:]) // never fails (crypto/rand)
	return s
}

// MarshalText writes it for JSON.
func (s Secret) MarshalText() ([]byte, error) {
	return base64.RawURLEncoding.AppendEncode(nil, s[:]), nil
}

// UnmarshalText reads what MarshalText writes.
func (s *Secret) UnmarshalText(text []byte) error {
	b, err := base64.RawURLEncoding.Strict().DecodeString(string(text))
	if err != nil || len(b) != len(s) {
		return fmt.Errorf("a secret of %d characters is none", len(text))
	}
	*s = Secret(b)
	return nil
}

// Line is an invitation as it is handed over: all that a host needs to know of a collective.
type Line struct {
	Collective   string
	Coordinators []Endpoint // tried one after the other
	Root         [32]byte   // SHA-256 of a root's certificate (DER)
	Secret       Secret
	Expires      time.Time // to the second
	Name         string    // what the member is to be called; empty: as it likes
}

// HashRoot is what a line says of a root.
func HashRoot(der []byte) [32]byte { return sha256.Sum256(der) }

// A line is the prefix and, in base64url, a checksum and the fields in this order: root, secret, expiry as
// seconds since 1970 in eight bytes (big endian); then each with its length in one byte before it, the
// collective's name and the member's; then the number of coordinators in one byte, and of each its name and
// its address. There is one way to write a line.

// String writes a line that Check has nothing against.
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

// lineSum finds a line that was mistyped or cut off before anything is sent. It is no proof: who changes a
// line can make it anew.
func lineSum(fields []byte) [checkSize]byte {
	sum := sha256.Sum256(append([]byte("dcol join 1\n"), fields...))
	return [checkSize]byte(sum[:])
}

// Check says what of a line makes no sense.
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
		return fmt.Errorf("%d coordinators: 1 to %d", n, maxCoordinators)
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

const lineMend = "copy the whole line again, as dcol invite printed it"

// errLine is any fault of a line's text.
var errLine = errors.New("not a whole line of dcol invite")

// IsLine says whether a text is meant as a line, whole or not.
func IsLine(text string) bool { return strings.HasPrefix(strings.TrimSpace(text), linePrefix) }

// ParseLine reads what String wrote. White space around and within, as terminals and mail programs put
// there, is left out.
func ParseLine(text string) (Line, error) {
	bad := func(format string, args ...any) (Line, error) {
		return Line{}, fmt.Errorf("join: %w: %w; %s", errLine, fmt.Errorf(format, args...), lineMend)
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
		return bad("a character of it is wrong, or one is missing")
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

// parseFields reads fields whose checksum is right: what is wrong with them now was made so.
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
		return Line{}, errors.New("it has not the fields of an invitation")
	}
	return l, nil
}
