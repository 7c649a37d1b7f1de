package ask

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

var (
	site      = netip.MustParseAddrPort("203.0.113.5:443")
	site6     = netip.MustParseAddrPort("[2001:db8::5]:80")
	plainSite = netip.MustParseAddrPort("203.0.113.6:443")
	local     = netip.MustParseAddrPort("127.0.0.1:40000")
	converter = netip.MustParseAddrPort("192.0.2.1:5124")

	addrPorts = cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
)

// notes is a Handler that answers from a table and records its calls.
type notes struct {
	mu       sync.Mutex
	answers  map[netip.AddrPort]Answer
	asked    int
	process  Process
	expected Expectations
	learned  map[netip.AddrPort]bool
	suspects []netip.AddrPort
	fast     map[netip.AddrPort]FastOpen
	excluded map[string]bool
	unserved [][2]netip.AddrPort // a converter, and a server
	refused  [][2]netip.AddrPort
	carried  []carriedNote
}

type carriedNote struct {
	local, converter, server netip.AddrPort
	handshake, answer        time.Duration
}

func (n *notes) Ask(p Process, server netip.AddrPort) Answer {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked++
	n.process = p
	return n.answers[server]
}

func (n *notes) Expect(p Process, local, server netip.AddrPort) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.expected.Add(p, local, server, time.Now())
}

func (n *notes) Excludes(_ Process, program string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked++
	return n.excluded[program]
}

func (n *notes) Learned(_ Process, server netip.AddrPort, mptcp bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.learned[server] = mptcp
}

func (n *notes) Suspect(_ Process, converter netip.AddrPort) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.suspects = append(n.suspects, converter)
}

func (n *notes) Unserved(_ Process, converter, server netip.AddrPort) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.unserved = append(n.unserved, [2]netip.AddrPort{converter, server})
}

func (n *notes) Refused(_ Process, converter, server netip.AddrPort) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refused = append(n.refused, [2]netip.AddrPort{converter, server})
}

func (n *notes) Carried(_ Process, local, converter, server netip.AddrPort, handshake, answer time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.carried = append(n.carried, carriedNote{local, converter, server, handshake, answer})
}

func (n *notes) FastOpened(_ Process, converter netip.AddrPort, how FastOpen) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fast[converter] = how
}

func newNotes() *notes {
	return &notes{answers: map[netip.AddrPort]Answer{}, learned: map[netip.AddrPort]bool{}, fast: map[netip.AddrPort]FastOpen{}}
}

func isDirect(c *Client, server netip.AddrPort) bool {
	direct, _ := c.Direct(server)
	return direct
}

// serve runs a relay's server until stop.
func serve(t *testing.T, socket string, h Handler) (stop func()) {
	t.Helper()
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, h) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func TestConversation(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
	socket := filepath.Join(t.TempDir(), SocketName)
	h := newNotes()
	convert := Convert{Converter: converter, Cookie: []byte("a cookie of 24 bytes ...\x00"[:24]), FastOpen: true, Relay4: netip.MustParseAddrPort("127.0.0.1:45675")}
	h.answers[site] = Answer{Convert: &convert}
	h.answers[site6] = Answer{KeepFor: time.Minute}
	h.answers[plainSite] = Answer{KeepFor: time.Minute, Plain: true}
	serve(t, socket, h)
	c := NewClient(socket, Timeout)
	t.Cleanup(c.Close)

	got := c.Ask(site)
	if got.Convert == nil || got.Convert.Namespace == 0 {
		t.Fatalf("answer %+v", got)
	}
	want := convert
	want.Namespace = got.Convert.Namespace
	if diff := cmp.Diff(&want, got.Convert, addrPorts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if h.process != (Process{PID: int32(os.Getpid()), UID: uint32(os.Geteuid())}) {
		t.Errorf("the relay sees process %+v", h.process)
	}
	if isDirect(c, site) || isDirect(c, site6) {
		t.Error("goes directly before an answer says so")
	}
	if got := c.Ask(site6); got.Convert != nil || !isDirect(c, site6) {
		t.Errorf("answer %+v, remembered %v", got, isDirect(c, site6))
	}
	if _, plain := c.Direct(site6); plain || !c.Ask(plainSite).Plain {
		t.Error("the server without MPTCP is another")
	}
	if direct, plain := c.Direct(plainSite); !direct || !plain {
		t.Errorf("the server without MPTCP is remembered as direct %v, plain %v", direct, plain)
	}
	if !c.Expect(local, site) || c.Expect(local, site6) {
		t.Error("an expectation was refused, or a second one for the same address was not")
	}
	c.Learned(site, true)
	c.Suspect(converter)
	c.Unserved(converter, site)
	c.Refused(converter, site6)
	c.Carried(local, converter, site6, 20*time.Millisecond, 30*time.Millisecond)
	c.FastOpened(converter, FastOpenSilent)
	c.Ask(site) // after its answer, the relay has read what came before
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.learned[site] || !slices.Equal(h.suspects, []netip.AddrPort{converter}) || h.fast[converter] != FastOpenSilent {
		t.Errorf("learned %v, suspects %v, fast %v", h.learned, h.suspects, h.fast)
	}
	if !slices.Equal(h.unserved, [][2]netip.AddrPort{{converter, site}}) || !slices.Equal(h.refused, [][2]netip.AddrPort{{converter, site6}}) ||
		!slices.Equal(h.carried, []carriedNote{{local, converter, site6, 20 * time.Millisecond, 30 * time.Millisecond}}) {
		t.Errorf("unserved %v, refused %v, carried %v", h.unserved, h.refused, h.carried)
	}
}

// TestRelayComesAndGoes checks that a relay that is not there costs no time, and that a new one is used.
func TestRelayComesAndGoes(t *testing.T) {
	socket := filepath.Join(t.TempDir(), SocketName)
	if Listens(socket) {
		t.Fatal("somebody listens")
	}
	h := newNotes()
	h.answers[site] = Answer{Convert: &Convert{Converter: converter}}
	stop := serve(t, socket, h)
	if !Listens(socket) {
		t.Fatal("nobody listens")
	}
	c := NewClient(socket, Timeout)
	t.Cleanup(c.Close)
	if c.Ask(site).Convert == nil {
		t.Fatal("not converted")
	}
	stop()
	if c.Ask(site).Convert != nil || !isDirect(c, site) {
		t.Error("an ended relay leads to a converter")
	}
	stop = serve(t, socket, h)
	defer stop()
	c.asleep = time.Time{}
	if c.Ask(site).Convert == nil {
		t.Error("the new relay is not used")
	}
	// The old connections are gone, which must not look like a relay that fails.
	stop()
	serve(t, socket, h)
	if c.Ask(site).Convert == nil {
		t.Error("a restarted relay looks like one that fails")
	}
}

// TestSilentRelay uses a relay that accepts, reads and never answers.
func TestSilentRelay(t *testing.T) {
	socket := filepath.Join(t.TempDir(), SocketName)
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := NewClient(socket, Timeout)
	defer c.Close()
	start := time.Now()
	if c.Ask(site).Convert != nil || !isDirect(c, site) {
		t.Error("no answer is not a direct answer")
	}
	if took := time.Since(start); took < Timeout {
		t.Errorf("gave up after %v", took)
	}
}

func TestServerLimits(t *testing.T) {
	socket := filepath.Join(t.TempDir(), SocketName)
	serve(t, socket, newNotes())
	conn, err := dial(socket, time.Now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("nonsense")); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("nonsense is answered: %d %v", n, err)
	}

	// A user's connections are limited, and root's only by the limit for all.
	for _, c := range []struct {
		user uint32
		want int
	}{{1000, maxClientsOfUser}, {0, maxClients}} {
		s := &server{conns: map[*net.UnixConn]uint32{}, ofUser: map[uint32]int{}}
		admitted := 0
		for s.admitAs(new(net.UnixConn), c.user) {
			admitted++
		}
		if admitted != c.want {
			t.Errorf("user %d has %d connections, want %d", c.user, admitted, c.want)
		}
	}
}

func TestExpectations(t *testing.T) {
	var e Expectations
	now := time.Unix(1, 0)
	user := Process{UID: 1000}
	if !e.Add(user, local, site, now) || e.Add(user, local, site6, now) {
		t.Error("the first was refused, or the second was not")
	}
	if got, uid, ok := e.Take(local, now); got != site || uid != 1000 || !ok {
		t.Errorf("took %v %d %v", got, uid, ok)
	}
	if _, _, ok := e.Take(local, now); ok {
		t.Error("taken twice")
	}
	// The connection is announced again later. The end of the first announcement must not end the second.
	e.Add(user, local, site6, now.Add(expectedFor/2))
	e.Add(user, netip.AddrPortFrom(local.Addr(), 1), site, now.Add(expectedFor))
	if got, _, ok := e.Take(local, now.Add(expectedFor)); got != site6 || !ok {
		t.Errorf("took %v %v", got, ok)
	}
	e = Expectations{}
	e.Add(user, local, site, now)
	if _, _, ok := e.Take(local, now.Add(expectedFor)); ok {
		t.Error("taken after its end")
	}
	added := 0
	for added <= maxExpected && e.Add(user, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, byte(added >> 8), byte(added)}), 9), site, now) {
		added++
	}
	if added != maxExpected {
		t.Errorf("expects %d connections, want %d", added, maxExpected)
	}
	if !e.Add(user, local, site, now.Add(expectedFor)) || len(e.servers) != 1 || len(e.order) != 1 {
		t.Errorf("after their end %d are left", len(e.servers))
	}
}

// A client remembers for a while whether a program is excluded. If the relay does not answer, the program
// connects directly.
func TestExcludedPrograms(t *testing.T) {
	n := newNotes()
	n.excluded = map[string]bool{"/usr/bin/ssh": true}
	socket := filepath.Join(t.TempDir(), SocketName)
	stop := serve(t, socket, n)
	c := NewClient(socket, Timeout)
	defer c.Close()
	for range 3 {
		if !c.Excludes("/usr/bin/ssh") || c.Excludes("/usr/bin/curl") {
			t.Fatal("ssh is not excluded, or curl is")
		}
	}
	if n.mu.Lock(); n.asked < 2 {
		t.Errorf("the relay was asked %d times", n.asked)
	}
	n.mu.Unlock()
	stop()
	for _, path := range []string{"/usr/bin/wget", "", "/" + strings.Repeat("x", MaxProgram)} {
		if !c.Excludes(path) {
			t.Errorf("%.20q is not excluded, though nobody said so", path)
		}
	}
}

func TestCacheIsBounded(t *testing.T) {
	c := NewClient("", Timeout)
	for i := range 3 * maxCached {
		c.remember(netip.AddrPortFrom(site.Addr(), uint16(i)), Answer{KeepFor: time.Hour})
		if len(c.directs) > maxCached {
			t.Fatalf("%d servers", len(c.directs))
		}
	}
}

func TestPackets(t *testing.T) {
	for _, r := range []request{
		{kind: kindQuestion, server: site6},
		{kind: kindExpect, server: site, local: local},
		{kind: kindLearned, server: site, mptcp: true},
		{kind: kindSuspect, server: converter},
		{kind: kindUnserved, server: site, converter: converter},
		{kind: kindRefused, server: site6, converter: converter},
		{kind: kindCarried, server: site6, converter: converter, handshake: time.Millisecond, answer: time.Hour},
		{kind: kindCarried, server: site6, local: local, converter: converter, handshake: time.Millisecond, answer: time.Hour},
		{kind: kindFastOpened, server: converter, how: FastOpenFailed},
	} {
		got, err := decodeRequest(r.encode())
		if err != nil || got != r {
			t.Errorf("%+v becomes %+v: %v", r, got, err)
		}
		whole := r.encode()
		for n := range whole {
			if r.kind == kindCarried && r.local.IsValid() && n == len(whole)-addrPortLen {
				continue // as a client of an older version encodes it
			}
			if _, err := decodeRequest(whole[:n]); !errors.Is(err, errMalformed) {
				t.Errorf("the first %d bytes of %+v: %v", n, r, err)
			}
		}
		if _, err := decodeRequest(append(whole, 0)); err == nil {
			t.Errorf("%+v may be longer", r)
		}
	}
	program := request{kind: kindProgram, program: "/usr/bin/" + strings.Repeat("x", MaxProgram-9)}
	if got, err := decodeRequest(program.encode()); err != nil || got != program || len(program.encode()) >= maxPacket {
		t.Errorf("%+v: %v", got, err)
	}
	for name, b := range map[string][]byte{
		"no program":        request{kind: kindProgram}.encode(),
		"a longer program":  append(program.encode(), 'x'),
		"another version":   append([]byte{2}, request{kind: kindQuestion, server: site}.encode()[1:]...),
		"no server":         request{kind: kindQuestion}.encode(),
		"no local address":  request{kind: kindExpect, server: site}.encode(),
		"silence of nobody": request{kind: kindUnserved, server: site}.encode(),
		"refusal of nobody": request{kind: kindRefused, server: site}.encode(),
		"no outcome":        request{kind: kindFastOpened, server: site}.encode(),
		"unknown outcome":   request{kind: kindFastOpened, server: site, how: 4}.encode(),
		"an answer":         encodeAnswer(Answer{}),
		"a yes that is two": append(request{kind: kindLearned, server: site}.encode()[:20], 2),
	} {
		if r, err := decodeRequest(b); err == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if a, err := decodeAnswer(encodeAnswer(Answer{KeepFor: 100 * time.Hour})); err != nil || a.KeepFor != maxKeep {
		t.Errorf("kept for %v: %v", a.KeepFor, err)
	}
}

// FuzzDecode checks that malformed packets do no harm, and that valid ones are not ambiguous.
func FuzzDecode(f *testing.F) {
	f.Add(request{kind: kindExpect, server: site, local: local}.encode())
	f.Add(request{kind: kindSuspect, server: converter}.encode())
	f.Add(request{kind: kindUnserved, server: site, converter: converter}.encode())
	f.Add(request{kind: kindRefused, server: site, converter: converter}.encode())
	f.Add(request{kind: kindCarried, server: site, converter: converter, answer: time.Second}.encode())
	f.Add(encodeAnswer(Answer{KeepFor: time.Second}))
	f.Add(encodeAnswer(Answer{KeepFor: time.Second, Plain: true}))
	f.Add(encodeAnswer(Answer{Convert: &Convert{Converter: converter, Cookie: make([]byte, 24)}}))
	f.Add(encodeAnswer(Answer{Convert: &Convert{Converter: converter, Cookie: make([]byte, 24), FastOpen: true}}))
	f.Add(request{kind: kindFastOpened, server: converter, how: FastOpenWorked}.encode())
	f.Add(request{kind: kindProgram, program: "/usr/bin/ssh"}.encode())
	f.Add(encodeYesOrNo(kindExpected, true))
	f.Add(encodeYesOrNo(kindExcluded, false))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := decodeRequest(b); err == nil {
			if r.kind == kindSuspect { // the reason is not read
				b = append(slices.Clone(b[:len(b)-1]), anyReason)
			}
			if !bytes.Equal(r.encode(), b) {
				t.Errorf("%x is understood as %x", b, r.encode())
			}
		}
		if a, err := decodeAnswer(b); err == nil && !bytes.Equal(encodeAnswer(a), b) {
			t.Errorf("%x is understood as %x", b, encodeAnswer(a))
		}
		for _, kind := range []byte{kindExpected, kindExcluded} {
			if ok, err := decodeYesOrNo(kind, b); err == nil && !bytes.Equal(encodeYesOrNo(kind, ok), b) {
				t.Errorf("%x is understood as %v", b, ok)
			}
		}
	})
}
