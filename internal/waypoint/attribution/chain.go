package attribution

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
)

// hash is the SHA-256 hash of a line.
type hash [sha256.Size]byte

func hashOf(text []byte) hash { return sha256.Sum256(text) }

func (h hash) String() string               { return hex.EncodeToString(h[:]) }
func (h hash) IsZero() bool                 { return h == hash{} }
func (h hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }
func (h *hash) UnmarshalText(text []byte) error {
	return unmarshalHex(h[:], text)
}

// logID identifies a log: a chain of lines, which may be in many files.
type logID [16]byte

func (id logID) String() string               { return hex.EncodeToString(id[:]) }
func (id logID) IsZero() bool                 { return id == logID{} }
func (id logID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }
func (id *logID) UnmarshalText(text []byte) error {
	return unmarshalHex(id[:], text)
}

func unmarshalHex(dst, text []byte) error {
	if len(text) != hex.EncodedLen(len(dst)) {
		return fmt.Errorf("%d hexadecimal digits where there must be %d", len(text), hex.EncodedLen(len(dst)))
	}
	_, err := hex.Decode(dst, text)
	return err
}

// headPurpose is the prefix of a signed head, so that the signature is valid for nothing else.
const headPurpose = "dcol log head 1\n"

// signed returns what the waypoint signs in a head: the line without its signature. Through the hash in it, the
// signature also covers all earlier lines.
func (l line) signed() []byte {
	l.Signature = nil
	return l.encode([]byte(headPurpose))
}

// Author is the waypoint that writes the log.
type Author struct {
	Collective, Waypoint string
	// Sign signs with the waypoint's key. It calls message with the waypoint's certificates (DER, its own first) to
	// get the data to sign.
	Sign func(message func(chain [][]byte) []byte) (signature []byte)
}

// chain is the state after the last line. It is a value, so that a failed write changes nothing.
type chain struct {
	log   logID
	began time.Time
	next  uint64
	prev  hash
	// unsigned counts lines since the last head.
	unsigned int
	// lost counts the lost entries that the log mentions.
	lost uint64
	// resumed is written before the first line: another agent continues this log.
	resumed *line
}

func newChain(now time.Time) chain {
	c := chain{began: now.UTC().Truncate(time.Millisecond)}
	_, _ = rand.Read(c.log[:]) // never fails
	return c
}

// batch holds lines to write to a file, and the state of chain and file after them.
type batch struct {
	chain
	author *Author
	text   []byte
	// What the file contains: proofs of sessions, and the certificates of its last head.
	shown map[wire.SessionID]bool // before the batch
	fresh map[wire.SessionID]bool // in the batch
	certs string                  // of the last head
	// bytes counts the bytes of text by the member that caused them.
	bytes map[string]int
}

// append adds a line at the end of the chain.
func (b *batch) append(l line) {
	l.N, l.Prev = b.next, b.prev
	begin := len(b.text)
	b.text = l.encode(b.text)
	b.prev = hashOf(b.text[begin:])
	b.text = append(b.text, '\n')
	b.next++
	b.unsigned++
}

// begin adds the first line of a file.
func (b *batch) begin(now time.Time) {
	b.append(line{
		Entry: Entry{Time: now, Event: fileBegan}, Format: format,
		Collective: b.author.Collective, Waypoint: b.author.Waypoint, Log: b.log, Began: b.began,
	})
}

// add adds an entry, preceded by the proof of its session if the file does not have it yet.
func (b *batch) add(e Entry) {
	begin := len(b.text)
	defer func() { b.bytes[e.Member] += len(b.text) - begin }()
	l := line{Entry: e}
	if s := e.By; s != nil {
		l.Session = s.Session
		if !b.shown[s.Session] && !b.fresh[s.Session] {
			b.fresh[s.Session] = true
			b.append(s.evidence(e.Time))
		}
	}
	b.append(l)
}

// noteLost adds a line about entries that are missing here.
func (b *batch) noteLost(now time.Time, lost uint64) {
	if lost > b.lost {
		b.append(line{Entry: Entry{Time: now, Event: entriesLost}, Lost: lost - b.lost})
		b.lost = lost
	}
}

// sign adds a head.
func (b *batch) sign(now time.Time, event Event) {
	l := line{Entry: Entry{Time: now, Event: event}, N: b.next, Prev: b.prev}
	l.Signature = b.author.Sign(func(certs [][]byte) []byte {
		if joined := joinCerts(certs); joined != b.certs {
			l.Chain, b.certs = certs, joined
		}
		return l.signed()
	})
	b.append(l)
	b.unsigned = 0
}

func joinCerts(certs [][]byte) string {
	var all []byte
	for _, c := range certs {
		all = append(all, c...)
	}
	return string(all)
}
