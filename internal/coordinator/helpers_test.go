package coordinator

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/bus"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/collective/directory"
	"github.com/detour-collective/dcol/internal/coordinator/registrar"
	"github.com/detour-collective/dcol/internal/enrol"
)

const testCollective = "test collective"

func parseAll(texts ...string) (list []netip.Addr) {
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

func wantRefusal(t testing.TB, err error, want enrol.Reason) *enrol.Refusal {
	t.Helper()
	r, ok := errors.AsType[*enrol.Refusal](err)
	if !ok || r.Reason != want {
		t.Fatalf("got %v, want a refusal because of %s", err, want)
	}
	return r
}

// world is a collective whose coordinator is hub.
type world struct {
	t   testing.TB
	dir string // the coordinator's
	hub *collective.Identity
	c   *Coordinator
	off atomic.Int64     // of its clock, in nanoseconds
	at  string           // the coordinator's own address; empty: 127.0.0.1
	bus []enrol.Endpoint // external; none: embedded

	listen, busListen string // empty: a free port of at

	stop func()
}

// newWorld makes a collective; its coordinator is open and does not run.
func newWorld(t testing.TB) *world {
	t.Helper()
	return newWorldIn(t, t.TempDir())
}

// runWorld makes a collective whose coordinator runs.
func runWorld(t testing.TB) *world {
	t.Helper()
	w := newWorld(t)
	w.run()
	return w
}

func newWorldIn(t testing.TB, dir string) *world {
	t.Helper()
	w := &world{t: t, dir: filepath.Join(dir, "coordinator")}
	h := w.host("hub")
	f, err := Init(w.dir, Founding{Collective: testCollective, Request: h.request})
	if err != nil {
		t.Fatal(err)
	}
	h.install(f.Chain, f.Roots, f.Lists)
	w.hub = h.id
	w.open()
	t.Cleanup(func() { w.crash() })
	return w
}

// shift sets the coordinator's clock wrong.
func (w *world) shift(off time.Duration) { w.off.Store(int64(off)) }

func (w *world) shifted() time.Duration { return time.Duration(w.off.Load()) }

func (w *world) open() {
	w.t.Helper()
	at := cmp.Or(w.at, "127.0.0.1")
	c, err := Open(Config{
		Dir: w.dir, Identity: w.hub, Listen: cmp.Or(w.listen, at+":0"), BusListen: cmp.Or(w.busListen, at+":0"), Addresses: []string{at}, BusServers: w.bus,
		Clock: func() time.Time { return time.Now().Add(w.shifted()) }, Log: testLog(w.t),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.c = c
}

// run starts the coordinator and returns when it is at work.
func (w *world) run() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	c := w.c
	go func() { done <- c.Run(ctx) }()
	w.stop = func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	}
	eventually(w.t, "the coordinator is at work", time.Minute, func() bool { return c.records.View(func(*directory.Directory) {}) })
}

// crash leaves only the files of the process. On a normal end a coordinator writes only its copy of the directory
// that it would not have written before a kill.
func (w *world) crash() {
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
	if w.c != nil {
		w.c.Close()
		w.c = nil
	}
}

func (w *world) reopen() {
	w.t.Helper()
	w.crash()
	w.open()
}

// loseRegister starts the coordinator again without its register.
func (w *world) loseRegister() {
	w.t.Helper()
	w.crash()
	if err := os.Remove(registrar.RegisterFile(w.dir)); err != nil {
		w.t.Fatal(err)
	}
	w.open()
	w.run()
}

// revoke revokes a member's certificates by hand.
func (w *world) revoke(name string, why collective.Reason) {
	w.t.Helper()
	ca, err := collective.OpenCA(registrar.CADir(w.dir))
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := ca.Revoke(name, why); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) invite(o InviteOptions) enrol.Line {
	w.t.Helper()
	l, err := w.c.Invite(o)
	if err != nil {
		w.t.Fatal(err)
	}
	back, err := enrol.ParseLine(l.String())
	if err != nil {
		w.t.Fatal(err)
	}
	return back
}

// host is another host, with a key.
type host struct {
	t       testing.TB
	w       *world
	name    string
	dir     string
	key     ed25519.PrivateKey
	request []byte
	id      *collective.Identity // when it is a member
	welcome *enrol.Welcome

	mu    sync.Mutex
	jwt   string
	heard []bus.Message
	bus   *bus.Member

	check func(enrol.Check) enrol.Checked
	on    func(bus.Message) // called instead of storing received messages
}

func (w *world) host(name string) *host {
	w.t.Helper()
	h := &host{t: w.t, w: w, name: name, dir: w.t.TempDir()}
	var err error
	if h.key, err = collective.NewKey(filepath.Join(h.dir, "me.key")); err != nil {
		w.t.Fatal(err)
	}
	if h.request, err = collective.NewRequest(h.key, name); err != nil {
		w.t.Fatal(err)
	}
	return h
}

// named is the same host with the same key, under another name.
func (h *host) named(name string) *host {
	h.t.Helper()
	request, err := collective.NewRequest(h.key, name)
	if err != nil {
		h.t.Fatal(err)
	}
	return &host{t: h.t, w: h.w, name: name, dir: h.dir, key: h.key, request: request}
}

func (h *host) join(l enrol.Line, lans ...netip.Prefix) error {
	h.t.Helper()
	w, err := enrol.Join(h.t.Context(), l, h.request, lans)
	if err == nil {
		h.accept(w)
	}
	return err
}

func (h *host) accept(w *enrol.Welcome) {
	h.t.Helper()
	h.mu.Lock()
	h.welcome, h.jwt = w, w.BusJWT
	h.mu.Unlock()
	h.install([]byte(w.Chain), []byte(w.Roots), []byte(w.Lists))
}

func (h *host) install(chain, roots, lists []byte) {
	h.t.Helper()
	f := collective.Files{
		Certificate: filepath.Join(h.dir, "me.crt"), Key: filepath.Join(h.dir, "me.key"),
		CA: filepath.Join(h.dir, "ca.crt"), CRL: filepath.Join(h.dir, "ca.crl"),
	}
	for path, data := range map[string][]byte{f.Certificate: chain, f.CA: roots, f.CRL: lists} {
		if err := os.WriteFile(path, data, 0o644); err != nil {
			h.t.Fatal(err)
		}
	}
	var err error
	if h.id, err = collective.Load(f, slog.New(slog.DiscardHandler)); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) renew() error {
	h.t.Helper()
	w, err := enrol.Renew(h.t.Context(), h.id, h.welcome.Coordinators, nil)
	if err != nil {
		return err
	}
	if err := h.id.TakeCertificate([]byte(w.Chain)); err != nil {
		h.t.Fatal(err)
	}
	h.mu.Lock()
	h.jwt = w.BusJWT
	h.mu.Unlock()
	return nil
}

// connect brings a member onto the bus.
func (h *host) connect() *host {
	h.t.Helper()
	var servers []bus.Endpoint
	for _, s := range h.welcome.BusServers {
		servers = append(servers, bus.Endpoint(s))
	}
	m, err := bus.Connect(bus.Config{
		Identity: h.id, Servers: servers, Log: slog.New(slog.DiscardHandler),
		JWT: func() (string, error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.jwt, nil
		},
	}, h.receive)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(m.Close)
	h.bus = m
	eventually(h.t, h.name+" is connected", 10*time.Second, func() bool { return m.State().Connected })
	return h
}

func (h *host) receive(m bus.Message) {
	if h.on != nil {
		h.on(m)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.heard = append(h.heard, m)
}

// answerChecks tries the addresses that the coordinator asks for.
func (h *host) answerChecks() {
	for done := 0; h.t.Context().Err() == nil; time.Sleep(20 * time.Millisecond) {
		h.mu.Lock()
		heard := h.heard[done:]
		done = len(h.heard)
		h.mu.Unlock()
		for _, m := range heard {
			if m.Topic != enrol.TopicCheck {
				continue
			}
			var c enrol.Check
			if err := json.Unmarshal(m.Data, &c); err != nil {
				h.t.Error(err)
				return
			}
			data, err := json.Marshal(h.check(c))
			if err == nil {
				err = h.bus.Tell(enrol.TopicChecked, data)
			}
			if err != nil && h.t.Context().Err() == nil {
				h.t.Error(err)
			}
		}
	}
}

// last is the last message received on a topic.
func (h *host) last(topic string) []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := len(h.heard) - 1; i >= 0; i-- {
		if h.heard[i].Topic == topic {
			return h.heard[i].Data
		}
	}
	return nil
}

func (h *host) ask(topic string, data []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(h.t.Context(), 10*time.Second)
	defer cancel()
	return h.bus.Ask(ctx, topic, data)
}

// record is a good one of a waypoint.
func (h *host) record() directory.Record {
	now := time.Now()
	return directory.Record{
		Collective: testCollective, Name: h.name, Sequence: directory.NextSequence(0, now), Issued: now, Expires: now.Add(24 * time.Hour),
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.7")}, Port: 45672, Roles: []string{directory.RoleWaypoint}, Subnet: h.id.Self().Subnet,
	}
}

// publish has a record taken that is at addresses which were shown to be the member's.
func (h *host) publish(r directory.Record) error {
	h.t.Helper()
	h.shown(r)
	return h.send(h.sign(r))
}

// shown has the coordinator know that a record's addresses are the member's.
func (h *host) shown(r directory.Record) {
	for _, a := range r.Addresses {
		h.w.c.prober.Show(h.name, a)
	}
}

func (h *host) sign(r directory.Record) *directory.SignedRecord {
	h.t.Helper()
	s, err := directory.Sign(r, h.id.Chain(), h.id.Sign)
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

// claim publishes a record with unverified addresses, and returns those that are refused.
func (h *host) claim(r directory.Record) []netip.Addr {
	h.t.Helper()
	data, err := h.sign(r).Encode()
	if err != nil {
		h.t.Fatal(err)
	}
	answer, err := h.ask(enrol.TopicRecord, data)
	if err != nil {
		h.t.Fatal(err)
	}
	if len(answer) == 0 {
		return nil
	}
	return fromJSON[enrol.RecordAnswer](h.t, answer).Unshown
}

func (h *host) send(s *directory.SignedRecord) error {
	h.t.Helper()
	data, err := s.Encode()
	if err != nil {
		h.t.Fatal(err)
	}
	_, err = h.ask(enrol.TopicRecord, data)
	return err
}

// directory is the copy of a member that asks for all of it.
func (h *host) directory() *directory.Directory {
	h.t.Helper()
	d := directory.New(directory.DefaultLimits())
	for ask, behind := d.Behind(); behind; ask, behind = d.Behind() {
		data, err := ask.Encode()
		if err != nil {
			h.t.Fatal(err)
		}
		answer, err := h.ask(enrol.TopicDirectory, data)
		if err != nil {
			h.t.Fatal(err)
		}
		b, err := directory.DecodeBatch(answer)
		if err != nil {
			h.t.Fatal(err)
		}
		d.Answer(b, h.id.Trust(), time.Now())
	}
	return d
}

// member joins and connects.
func (w *world) member(name string) *host {
	w.t.Helper()
	h := w.host(name)
	if err := h.join(w.invite(InviteOptions{})); err != nil {
		w.t.Fatal(err)
	}
	return h.connect()
}

// waypoint joins, connects, and publishes a record.
func (w *world) waypoint(name string) *host {
	w.t.Helper()
	h := w.member(name)
	if err := h.publish(h.record()); err != nil {
		w.t.Fatal(err)
	}
	return h
}

func fromJSON[T any](t testing.TB, data []byte) (v T) {
	t.Helper()
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatalf("%q: %v", data, err)
	}
	return v
}

func wantBusRefusal(t testing.TB, err error) *bus.Refusal {
	t.Helper()
	r, ok := errors.AsType[*bus.Refusal](err)
	if !ok {
		t.Fatalf("got %v, want a refusal", err)
	}
	return r
}

// testLog prints the log of a failed test.
func testLog(t testing.TB) *slog.Logger {
	level := slog.LevelWarn
	if os.Getenv("DCOL_TEST_DEBUG") != "" {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: level}))
}

// eventually waits until ok returns true, or fails the test.
func eventually(t testing.TB, what string, within time.Duration, ok func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for !ok() {
		if time.Since(start) > within {
			t.Fatalf("not within %v: %s", within, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Since(start)
}
