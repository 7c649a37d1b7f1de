package attribution

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/session/wire"
)

// testCollective stands for certificates: a chain is a name and a serial number.
type testCollective struct{ keys map[string]ed25519.PrivateKey }

type testMember struct {
	*testCollective
	name, serial string
}

func newTestCollective() *testCollective {
	return &testCollective{keys: make(map[string]ed25519.PrivateKey)}
}

// member has the same key whenever it is asked for.
func (c *testCollective) member(name, serial string) testMember {
	if c.keys[name+"/"+serial] == nil {
		seed := make([]byte, ed25519.SeedSize)
		copy(seed, name+"/"+serial)
		c.keys[name+"/"+serial] = ed25519.NewKeyFromSeed(seed)
	}
	return testMember{c, name, serial}
}

func testWaypoint() testMember { return newTestCollective().member("bob", "0b") }

func (m testMember) key() ed25519.PrivateKey { return m.keys[m.name+"/"+m.serial] }
func (m testMember) chain() [][]byte         { return [][]byte{[]byte(m.name + "/" + m.serial)} }

func (m testMember) author() Author {
	return Author{Collective: "test", Waypoint: m.name, Sign: m.sign}
}

func (m testMember) sign(message func(chain [][]byte) []byte) []byte {
	return ed25519.Sign(m.key(), message(m.chain()))
}

func (m testMember) writer(path string, limits Limits) *writer {
	author := m.author()
	return &writer{path: path, limits: limits, author: &author, shares: newShares(limits.Share)}
}

// session is one that a member has signed at that time.
func (m testMember) session(waypoint string, at time.Time) *Session {
	var id wire.SessionID
	_, _ = rand.Read(id[:])
	s := wire.Statement{Collective: "test", Member: m.name, Serial: m.serial, Waypoint: waypoint, Session: id, Time: at.UTC().Truncate(time.Millisecond)}
	return &Session{Proof: wire.Proof{Statement: s, Signature: ed25519.Sign(m.key(), s.Message()), Chain: m.chain()}, Opened: at}
}

var errNoMember = errors.New("no member of this collective")

// authority knows the members, until their certificates end.
func (c *testCollective) authority(chain [][]byte, at time.Time) (Signer, error) {
	if len(chain) != 1 {
		return Signer{}, errNoMember
	}
	name, serial, _ := strings.Cut(string(chain[0]), "/")
	key := c.keys[name+"/"+serial]
	if key == nil || at.Year() > 2100 {
		return Signer{}, errNoMember
	}
	return Signer{Name: name, Serial: serial, Collective: "test", Key: key.Public().(ed25519.PublicKey)}, nil
}

// memory is a file of a log in memory.
func memory(name, content string) File {
	return File{Name: name, Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(content)), nil }}
}

func (c *testCollective) verify(t testing.TB, files ...File) *Report {
	t.Helper()
	r, err := Verify(files, c.authority)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (c *testCollective) verifyText(t testing.TB, content string) *Report {
	t.Helper()
	return c.verify(t, memory("log", content))
}

// story is a log of two members' sessions and connections, as an agent of bob's writes it that stops.
func (c *testCollective) story(t testing.TB, path string, connections int) string {
	t.Helper()
	l := Open(path, c.member("bob", "0b").author(), DefaultLimits, slog.New(slog.DiscardHandler))
	c.tell(l, connections)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func (c *testCollective) tell(l *Log, connections int) {
	var sessions []*Session
	for _, m := range []testMember{c.member("alice", "0a"), c.member("carol", "0c")} {
		sessions = append(sessions, m.session("bob", time.Now()))
	}
	for i := range connections {
		s := sessions[i%len(sessions)]
		e := flow(s, uint16(1000+i))
		l.Write(e)
		if i%3 == 0 {
			var up, down uint64 = 10, 20
			e.Event, e.Opened, e.Time, e.BytesFromClient, e.BytesToClient = FlowClosed, e.Time, time.Now(), &up, &down
			l.Write(e)
		}
	}
}

// flow is the beginning of a connection.
func flow(s *Session, port uint16) Entry {
	return Entry{
		Time: time.Now(), Event: FlowOpened, Member: s.Member, Serial: s.Serial, By: s, Client: netip.MustParseAddr("192.0.2.1"), ClientPort: port,
		Port: 443, Server: netip.MustParseAddrPort("198.51.100.1:443"), Egress: netip.AddrPortFrom(netip.MustParseAddr("203.0.113.9"), port),
	}
}

func (c *testCollective) keyOf(name, serial string) ed25519.PublicKey {
	return c.member(name, serial).key().Public().(ed25519.PublicKey)
}
