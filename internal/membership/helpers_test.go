package membership

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/enrol"
	"github.com/detour-collective/dcol/internal/strangers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a collective with a minimal coordinator, hub. It accepts every record, and renews every certificate
// unless the member is expelled.
type world struct {
	t         *testing.T
	root, ca  *collective.CA // ca is a signer
	authority *bus.Authority
	hub       *collective.Identity
	busAt     enrol.Endpoint
	officeAt  enrol.Endpoint
	store     string
	files     sync.Map // of members' identities: directories, by name

	mu       sync.Mutex
	validity time.Duration // of renewed certificates
	expelled map[string]string
	journal  *directory.Journal
	revision uint64
	records  map[string]*directory.Verified
	unshown  []netip.Addr // addresses that are taken in no record
	word     enrol.Reachability
	checked  chan enrol.Checked
	enforced map[string][]string // hashes that members have reported
	brief    bool                // lists do not fit in messages
	off      time.Duration

	bus    *bus.Server
	line   *bus.Coordinator
	office *http.Server
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		t: t, validity: time.Hour, expelled: map[string]string{}, journal: directory.NewJournal(1),
		records: map[string]*directory.Verified{}, enforced: map[string][]string{}, checked: make(chan enrol.Checked, 8), store: t.TempDir(),
		word: enrol.Reachability{At: time.Now()},
	}
	var err error
	w.root = must(collective.InitCA(t.TempDir(), "test collective"))(t)
	w.ca = must(w.root.NewSigner(filepath.Join(t.TempDir(), "signer")))(t)
	w.authority = must(bus.InitAuthority(t.TempDir(), "test collective"))(t)
	if w.hub, err = w.identity("hub", time.Hour); err != nil {
		t.Fatal(err)
	}
	w.busAt, w.officeAt = freePort(t), freePort(t)
	w.open()
	t.Cleanup(w.close)
	return w
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// freePort returns an address of the hub where nothing listens.
func freePort(t *testing.T) enrol.Endpoint {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	l.Close()
	return enrol.Endpoint{Name: "hub", Address: l.Addr().String()}
}

// open begins the coordinator, again after close.
func (w *world) open() {
	w.t.Helper()
	w.bus = must(bus.Serve(bus.ServerConfig{
		Identity: w.hub, Authority: w.authority, Listen: w.busAt.Address, Store: w.store, MaxConnections: 100, Seen: strangers.NewSeen(), Log: quiet(),
	}))(w.t)
	w.line = must(bus.ConnectCoordinator(bus.Config{
		Identity: w.hub, Servers: []bus.Endpoint{w.bus.Endpoint()}, Log: quiet(),
		JWT: func() (string, error) {
			return w.authority.CoordinatorJWT("hub", w.hub.PublicKey(), w.hub.Self().NotAfter)
		},
	}, bus.Handlers{Handle: w.handle}))(w.t)
	l := must(net.Listen("tcp", w.officeAt.Address))(w.t)
	now := func() time.Time { return time.Now().Add(w.off) }
	w.office = &http.Server{Handler: enrol.NewHandler(w, now, quiet()), ErrorLog: slog.NewLogLogger(quiet().Handler(), slog.LevelDebug)}
	go w.office.Serve(tls.NewListener(l, enrol.ServerTLS(w.hub)))
}

// close is the coordinator's absence.
func (w *world) close() {
	if w.bus == nil {
		return
	}
	w.line.Close()
	w.bus.Close()
	w.office.Close()
	w.bus = nil
}

// identity enrols a member, with its own directory.
func (w *world) identity(name string, validity time.Duration) (*collective.Identity, error) {
	w.t.Helper()
	dir := w.t.TempDir()
	w.files.Store(name, dir)
	f := collective.Files{
		Certificate: filepath.Join(dir, "me.crt"), Key: filepath.Join(dir, "me.key"),
		CA: filepath.Join(dir, "ca.crt"), CRL: filepath.Join(dir, "ca.crl"),
	}
	key := must(collective.NewKey(f.Key))(w.t)
	request := must(collective.NewRequest(key, name))(w.t)
	signed := w.sign(request, validity)
	for path, data := range map[string][]byte{f.Certificate: signed.Chain, f.CA: w.trust().Roots(), f.CRL: w.trust().Lists()} {
		if err := os.WriteFile(path, data, 0o644); err != nil {
			w.t.Fatal(err)
		}
	}
	return collective.Open(f, testLog(w.t))
}

func (w *world) sign(request []byte, validity time.Duration) collective.Signed {
	w.t.Helper()
	r := must(collective.ParseRequest(request))(w.t)
	return must(w.ca.Sign(r, collective.Terms{Name: r.Name(), Validity: validity}))(w.t)
}

func (w *world) trust() *collective.Trust { return must(w.ca.Trust())(w.t) }

// Join implements enrol.Service.
func (w *world) Join(context.Context, enrol.JoinRequest) (*enrol.Welcome, error) {
	return nil, enrol.Refuse(enrol.TokenUnknown, "nobody joins here")
}

// Renew implements enrol.Service.
func (w *world) Renew(_ context.Context, _ collective.PublicKey, _ [][]byte, r enrol.RenewRequest) (*enrol.Welcome, error) {
	request, err := collective.ParseRequest([]byte(r.Request))
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if why, is := w.expelled[request.Name()]; is {
		return nil, enrol.Refuse(enrol.Expelled, "%s was expelled: %s", request.Name(), why)
	}
	if w.off > enrol.MaxClockOff {
		return nil, enrol.Refuse(enrol.ClockWrong, "%s", enrol.SayClocks(time.Now().Add(w.off), r.Time))
	}
	welcome := w.welcome(w.sign([]byte(r.Request), w.validity))
	return &welcome, nil
}

func (w *world) setValidity(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.validity = d
}

func (w *world) welcome(signed collective.Signed) enrol.Welcome {
	jwt := must(w.authority.MemberJWT(signed.Member.Name, signed.Member.Key[:], signed.Member.NotAfter))(w.t)
	return enrol.Welcome{
		Chain: string(signed.Chain), TrustMessage: enrol.NewTrustMessage(w.trust()), BusJWT: jwt,
		BusServers: []enrol.Endpoint{w.busAt}, Coordinators: []enrol.Endpoint{w.officeAt},
	}
}

// Leave implements enrol.Service.
func (w *world) Leave(context.Context, collective.PublicKey) error {
	return enrol.Refuse(enrol.NotMember, "nobody leaves here")
}

// Trust implements enrol.Service.
func (w *world) Trust(context.Context) (*enrol.TrustMessage, error) {
	m := enrol.NewTrustMessage(w.trust())
	return &m, nil
}

func (w *world) handle(_ context.Context, r bus.Request) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch r.Topic {
	case enrol.TopicRecord:
		return w.judge(r)
	case enrol.TopicDirectory:
		ask, err := directory.DecodeAsk(r.Data)
		if err != nil {
			return nil, err
		}
		b := w.journal.Answer(ask)
		return b.Encode()
	case enrol.TopicTrust:
		return json.Marshal(w.trustMessage())
	case enrol.TopicEnforced:
		w.enforced[r.From] = append(w.enforced[r.From], string(r.Data))
		return nil, nil
	case enrol.TopicReachability:
		return json.Marshal(w.word)
	case enrol.TopicPunch:
		var p enrol.Punch
		if err := json.Unmarshal(r.Data, &p); err != nil {
			return nil, err
		}
		to := p.With
		p.With = r.From
		data, err := json.Marshal(p)
		if err != nil {
			return nil, err
		}
		return nil, w.line.Tell(to, enrol.TopicPunch, data)
	case enrol.TopicChecked:
		var c enrol.Checked
		if err := json.Unmarshal(r.Data, &c); err != nil {
			return nil, err
		}
		w.checked <- c
		return nil, nil
	}
	return nil, errors.New("what is " + r.Topic + "?")
}

func (w *world) trustMessage() enrol.TrustMessage {
	m := enrol.NewTrustMessage(w.trust())
	if w.brief {
		m.Roots, m.Lists = "", ""
	}
	return m
}

// judge accepts a record unless it contains something that w.unshown lists.
func (w *world) judge(r bus.Request) ([]byte, error) {
	signed, err := directory.DecodeRecord(r.Data)
	if err != nil {
		return nil, err
	}
	v, err := signed.Verify(w.trust(), time.Now())
	if err != nil {
		return nil, err
	}
	for _, a := range v.Record.Addresses {
		if slices.Contains(w.unshown, a) {
			return json.Marshal(enrol.RecordAnswer{Unshown: w.unshown})
		}
	}
	return nil, w.take(r)
}

// take puts a record into the directory, and announces it to all. The caller holds the lock.
func (w *world) take(r bus.Request) error {
	signed, err := directory.DecodeRecord(r.Data)
	if err != nil {
		return err
	}
	v, err := signed.Verify(w.trust(), time.Now())
	if err != nil {
		return err
	}
	if _, is := w.expelled[v.Record.Name]; is {
		return errors.New("you were expelled")
	}
	w.records[v.Record.Name] = v
	return w.changed(func(revision uint64) error { return w.journal.Put(revision, v.Record.Name, signed) })
}

func (w *world) changed(do func(revision uint64) error) error {
	before := w.revision
	w.revision++
	if err := do(w.revision); err != nil {
		return err
	}
	b := w.journal.Answer(directory.Ask{Epoch: 1, After: before})
	data, err := b.Encode()
	if err != nil {
		return err
	}
	return w.line.TellAll(enrol.TopicDirectory, data)
}

// expel does what a coordinator does, except for what a test wants members to find out.
func (w *world) expel(name, why string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.expelled[name] = why
	if _, err := w.ca.Revoke(name, collective.PrivilegeWithdrawn); err != nil {
		w.t.Fatal(err)
	}
	w.tell(enrol.TopicTrust, w.trustMessage())
	key := w.records[name].Holder.Key
	account := must(w.authority.Revoke(key[:]))(w.t)
	if err := w.bus.SetAccount(w.t.Context(), account); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) tell(topic string, v any) {
	w.t.Helper()
	if err := w.line.TellAll(topic, must(json.Marshal(v))(w.t)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) tellOne(member, topic string, v any) {
	w.t.Helper()
	if err := w.line.Tell(member, topic, must(json.Marshal(v))(w.t)); err != nil {
		w.t.Fatal(err)
	}
}

// host is a member's.
type host struct {
	*Membership
	t       *testing.T
	w       *world
	id      *collective.Identity
	dir     string
	choices chan []Waypoint
	reach   func(name string, at netip.AddrPort, punch bool) error
	own     []netip.Addr
	knock   func(from string, id [12]byte, at []netip.AddrPort)
	trusted func()
	stop    func()
}

// join makes a member that has not begun yet.
func (w *world) join(name string, validity time.Duration) *host {
	w.t.Helper()
	h := &host{t: w.t, w: w, id: must(w.identity(name, validity))(w.t), dir: w.t.TempDir(), stop: func() {}}
	self := h.id.Self()
	if self.NotAfter.After(time.Now()) {
		jwt := must(w.authority.MemberJWT(name, h.id.PublicKey(), self.NotAfter))(w.t)
		e := Enrolment{BusJWT: jwt, BusServers: []enrol.Endpoint{w.busAt}, Coordinators: []enrol.Endpoint{w.officeAt}}
		if err := e.Save(h.dir); err != nil {
			w.t.Fatal(err)
		}
	}
	return h
}

// start begins, or begins again after stop.
func (h *host) start() *host {
	h.choices = make(chan []Waypoint, 64)
	h.Membership = New(Config{
		Identity: h.id, Dir: h.dir, Coordinators: []enrol.Endpoint{h.w.officeAt}, LANs: func() []netip.Prefix { return nil }, Own: func() []netip.Addr { return h.own },
		Client: directory.Client{Name: h.id.Name(), Want: directory.DefaultWaypoints},
		Choice: func(c []Waypoint) { h.choices <- c },
		Reach: func(_ context.Context, name string, at netip.AddrPort, punch bool) error {
			return h.reach(name, at, punch)
		},
		Knock: h.knock, Trusted: h.trusted,
		Log: testLog(h.t),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := h.Run(ctx); err != nil {
			h.t.Error(err)
		}
	}()
	h.stop = func() { cancel(); <-ended; h.stop = func() {} }
	h.t.Cleanup(func() { h.stop() })
	return h
}

// filesDir is where its identity's files are.
func (h *host) filesDir() string {
	dir, _ := h.w.files.Load(h.id.Name())
	return dir.(string)
}

// serves makes the host publish that it is a waypoint.
func (h *host) serves(addr string) *host {
	h.Offer(Offer{Addresses: []netip.Addr{netip.MustParseAddr(addr)}, Port: 45672, Roles: []string{directory.RoleWaypoint}, Kinds: []string{"in-band"}})
	return h
}

// await waits until the state is as wanted.
func (h *host) await(what string, ok func(State) bool) State {
	h.t.Helper()
	var s State
	for deadline := time.Now().Add(15 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		s = must(h.State(h.t.Context()))(h.t)
		if ok(s) {
			return s
		}
	}
	h.t.Fatalf("%s: not %s: %+v", h.id.Name(), what, s)
	return s
}

// awaitChoice waits until these are chosen.
func (h *host) awaitChoice(names ...string) []Waypoint {
	h.t.Helper()
	var last []Waypoint
	timeout := time.After(15 * time.Second)
	for {
		select {
		case last = <-h.choices:
		case <-timeout:
			h.t.Fatalf("%s chose %+v, wanted %v", h.id.Name(), last, names)
		}
		if len(last) != len(names) {
			continue
		}
		same := true
		for _, n := range names {
			found := false
			for _, c := range last {
				found = found || c.Name == n
			}
			same = same && found
		}
		if same {
			return last
		}
	}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// testLog prints the log of a failed test.
func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}
