package enrol

import (
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

func TestJoin(t *testing.T) {
	w := newWorld(t)
	var got JoinRequest
	w.server.join = func(r JoinRequest) (*Welcome, error) { got = r; return w.server.grant(r.Request) }
	l, lans := w.line(w.at), []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
	welcome, err := Join(t.Context(), l, w.request("laptop"), lans)
	if err != nil {
		t.Fatal(err)
	}
	if got.Secret != l.Secret || got.Collective != "test collective" || len(got.LANs) != 1 || got.LANs[0] != lans[0] {
		t.Errorf("the coordinator was told %+v", got)
	}
	trust, err := collective.ParseTrust([]byte(welcome.Roots), []byte(welcome.Lists))
	if err != nil {
		t.Fatal(err)
	}
	if m, err := welcome.Member(trust); err != nil || m.Name != "laptop" {
		t.Errorf("the certificate is for %v: %v", m, err)
	}
	if welcome.Hash != HashTrust(trust) || welcome.BusJWT != "a JWT" || welcome.BusServers[0].Name != "hub" || welcome.Off.Abs() > time.Second {
		t.Errorf("got %+v", welcome)
	}
}

// The secret is sent only to the coordinator that the invitation names.
func TestJoinWithTheWrongServer(t *testing.T) {
	w := newWorld(t)
	w.server.join = func(JoinRequest) (*Welcome, error) { t.Error("told the secret"); return nil, errors.New("no") }
	other := w.identity(collective.Request{Name: "other"})
	stranger := newWorld(t)
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	go func() {
		for {
			c, err := mute.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	withoutRoot := w.hub.ServerTLS(alpn).Clone()
	without := withoutRoot.GetConfigForClient
	withoutRoot.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		c, err := without(h)
		if err == nil {
			c.ClientAuth = tls.NoClientCert
		}
		return c, err
	}
	for name, at := range map[string]Endpoint{
		"another member":       {"hub", w.serve(other).Address},
		"another collective":   stranger.at,
		"without the root":     w.serveTLS("hub", withoutRoot),
		"something else there": {"hub", mute.Addr().String()},
		"nobody":               {"hub", "127.0.0.1:1"},
	} {
		_, err := Join(t.Context(), w.line(at), w.request("laptop"), nil)
		if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), at.Address) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An answer must match the request, under the invitation's root.
func TestJoinBelievesNothing(t *testing.T) {
	w, stranger := newWorld(t), newWorld(t)
	for name, join := range map[string]func(JoinRequest) (*Welcome, error){
		"for another key": func(JoinRequest) (*Welcome, error) { return w.server.grant(string(w.request("laptop"))) },
		"other roots":     func(r JoinRequest) (*Welcome, error) { return stranger.server.grant(r.Request) },
		"other roots alone": func(r JoinRequest) (*Welcome, error) {
			m, err := w.server.grant(r.Request)
			strange, _ := stranger.server.Trust(t.Context())
			m.TrustMessage = *strange
			return m, err
		},
		"no lists": func(r JoinRequest) (*Welcome, error) {
			m, err := w.server.grant(r.Request)
			m.Lists = ""
			return m, err
		},
		"no certificate": func(r JoinRequest) (*Welcome, error) {
			m, err := w.server.grant(r.Request)
			m.Chain = ""
			return m, err
		},
		"nothing": func(JoinRequest) (*Welcome, error) { return nil, nil },
	} {
		w.server.join = join
		if _, err := Join(t.Context(), w.line(w.at), w.request("laptop"), nil); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestRefusals(t *testing.T) {
	w := newWorld(t)
	for _, reason := range []Reason{Malformed, OtherCollective, TokenUnknown, TokenUsed, TokenExpired, NameTaken, NameDiffers, KeyTaken, ClockWrong, NotMember, Expelled, TooMany, Unavailable} {
		w.server.join = func(JoinRequest) (*Welcome, error) {
			r := Refuse(reason, "because of %s", "it")
			r.Proposal, r.After = "laptop-2", 60
			return nil, r
		}
		_, err := Join(t.Context(), w.line(w.at), w.request("laptop"), nil)
		r := wantRefusal(t, err, reason)
		if r.Proposal != "laptop-2" || r.After != 60 || !strings.Contains(err.Error(), "because of it") || !errors.Is(err, reason) {
			t.Errorf("got %+v: %v", r, err)
		}
	}
	w.server.join = func(JoinRequest) (*Welcome, error) { return nil, errors.New("the disk is full") }
	_, err := Join(t.Context(), w.line(w.at), w.request("laptop"), nil)
	wantRefusal(t, err, Unavailable)
	if strings.Contains(err.Error(), "disk") {
		t.Errorf("tells a stranger: %v", err)
	}
}

// One coordinator that is away, or cannot, does not keep from asking the next.
func TestSeveralCoordinators(t *testing.T) {
	w := newWorld(t)
	other := newWorld(t)
	other.server.join = func(JoinRequest) (*Welcome, error) { return nil, Refuse(Unavailable, "not today") }
	unable := w.identity(collective.Request{Name: "unable"})
	w.server, other.server = other.server, w.server
	at := w.serve(unable)
	w.server = other.server
	for range 8 { // the order is by chance
		if _, err := Join(t.Context(), w.line(Endpoint{"away", "127.0.0.1:1"}, w.at, at), w.request("laptop"), nil); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRenew(t *testing.T) {
	w := newWorld(t)
	for name, id := range map[string]*collective.Identity{
		"valid": w.identity(collective.Request{Name: "valid"}),
		"ended": w.ended("ended"),
	} {
		w.server.renew = func(key collective.PublicKey, r RenewRequest) (*Welcome, error) {
			if key != collective.PublicKey(id.PublicKey()) {
				t.Errorf("%s: proved to have another key", name)
			}
			return w.server.grant(r.Request)
		}
		welcome, err := Renew(t.Context(), id, []Endpoint{w.at}, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := id.TakeCertificate([]byte(welcome.Chain)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A member leaves with its key, also when its certificate has ended. A coordinator that does not know the request is not
// taken to have heard it.
func TestLeave(t *testing.T) {
	w := newWorld(t)
	for name, id := range map[string]*collective.Identity{"valid": w.identity(collective.Request{Name: "valid"}), "ended": w.ended("ended")} {
		var left collective.PublicKey
		w.server.leave = func(key collective.PublicKey) error { left = key; return nil }
		if err := Leave(t.Context(), id, []Endpoint{w.at}); err != nil || left != collective.PublicKey(id.PublicKey()) {
			t.Errorf("%s: %v, the key is %v", name, err, left)
		}
	}
	id := w.identity(collective.Request{Name: "laptop"})
	w.server.leave = func(collective.PublicKey) error { return Refuse(NotMember, "no") }
	wantRefusal(t, Leave(t.Context(), id, []Endpoint{w.at}), NotMember)
	if err := Leave(t.Context(), id, []Endpoint{{"hub", "127.0.0.1:1"}}); !errors.Is(err, ErrUnreachable) {
		t.Errorf("nobody is there: %v", err)
	}
	p := peer{to: w.at, verify: verifyMember(w.hub.Trust())}
	_, err := p.call(t.Context(), pathLeave, LeaveRequest{})
	wantRefusal(t, err, Malformed) // without a key
	if _, err := (peer{to: w.at, verify: verifyMember(w.hub.Trust()), id: id}).call(t.Context(), "/v1/unknown", LeaveRequest{}); !errors.Is(err, errStrange) {
		t.Errorf("an older coordinator: %v", err)
	}
}

// ended is a member whose certificate ends before it is used.
func (w *world) ended(name string) *collective.Identity {
	id := w.identity(collective.Request{Name: name, NotBefore: time.Now().Add(-time.Hour), Validity: time.Hour + 2*time.Second})
	time.Sleep(time.Until(id.Self().NotAfter) + 10*time.Millisecond)
	return id
}

func TestRenewNeedsTheRightServer(t *testing.T) {
	w := newWorld(t)
	w.server.renew = func(collective.PublicKey, RenewRequest) (*Welcome, error) {
		t.Error("asked")
		return nil, errors.New("no")
	}
	id, other := w.identity(collective.Request{Name: "laptop"}), w.identity(collective.Request{Name: "other"})
	for name, at := range map[string]Endpoint{
		"another member":     {"hub", w.serve(other).Address},
		"another collective": newWorld(t).at,
	} {
		if _, err := Renew(t.Context(), id, []Endpoint{at}, nil); !errors.Is(err, ErrUnreachable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A revoked coordinator is refused, even if its certificate is otherwise valid.
	if _, err := w.signer.Revoke("hub", collective.KeyCompromise); err != nil {
		t.Fatal(err)
	}
	trust, _ := w.server.Trust(t.Context())
	if _, err := id.TakeTrust(nil, []byte(trust.Lists)); err != nil {
		t.Fatal(err)
	}
	if _, err := Renew(t.Context(), id, []Endpoint{w.at}, nil); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "revoked") {
		t.Errorf("with one revoked: %v", err)
	}
}

// A renewal must use the member's key in the handshake.
func TestRenewNeedsTheKey(t *testing.T) {
	w := newWorld(t)
	p := peer{to: w.at, verify: verifyMember(w.hub.Trust())}
	_, err := p.call(t.Context(), pathRenew, RenewRequest{Request: string(w.request("laptop"))})
	wantRefusal(t, err, Malformed)
}

// A member that was away while the roots changed finds its way by their statements.
func TestRenewAfterTheRootsChanged(t *testing.T) {
	w := newWorld(t)
	id := w.identity(collective.Request{Name: "laptop"})
	next, err := w.root.Successor(filepath.Join(t.TempDir(), "next"))
	if err != nil {
		t.Fatal(err)
	}
	if w.signer, err = next.NewSigner(filepath.Join(t.TempDir(), "signer")); err != nil {
		t.Fatal(err)
	}
	w.server.signer = w.signer
	w.hub = w.identity(collective.Request{Name: "hub"})
	w.at = w.serve(w.hub)
	welcome, err := Renew(t.Context(), id, []Endpoint{w.at}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := id.TakeCertificate([]byte(welcome.Chain)); err != nil {
		t.Fatal(err)
	}
	if id.Self().Issuer.Root == id.Self().Issuer.Key || RootOf(id) != RootOf(w.hub) {
		t.Error("the new certificate is not under the new root")
	}
}

// The server of trust need not be trusted: another collective's roots are fetched, but not accepted.
func TestFetchTrust(t *testing.T) {
	w := newWorld(t)
	id := w.identity(collective.Request{Name: "laptop"})
	got, err := FetchTrust(t.Context(), []Endpoint{w.at})
	if err != nil {
		t.Fatal(err)
	}
	if got.Hash != HashTrust(id.Trust()) || !got.Whole() {
		t.Errorf("got %v", got.Hash)
	}
	strange, err := FetchTrust(t.Context(), []Endpoint{newWorld(t).at})
	if err != nil {
		t.Fatal(err)
	}
	if changed, err := id.TakeTrust([]byte(strange.Roots), []byte(strange.Lists)); err == nil || changed {
		t.Errorf("a stranger's roots were taken: %v, %v", changed, err)
	}
}

// A host whose clock is a day behind cannot check certificates, and learns how far its clock is off.
func TestClockBehind(t *testing.T) {
	w := newWorld(t)
	id := w.identity(collective.Request{Name: "laptop"})
	w.server.off = 24 * time.Hour
	at := w.serveTLS("hub", w.ofAnotherTime(time.Now().Add(22*time.Hour), 4*time.Hour))
	_, err := Join(t.Context(), w.line(at), w.request("laptop"), nil)
	_, renewErr := Renew(t.Context(), id, []Endpoint{at}, nil)
	for _, err := range []error{err, renewErr} {
		r := wantRefusal(t, err, ClockWrong)
		if (r.Off + 24*time.Hour).Abs() > time.Minute {
			t.Errorf("it says %v", r.Off)
		}
		if !strings.Contains(err.Error(), "24h0m0s behind it") || !strings.Contains(err.Error(), "set the clock right") {
			t.Errorf("got %v", err)
		}
	}
}

// One whose clock is ahead may still accept them: then the answer shows it.
func TestClockAhead(t *testing.T) {
	w := newWorld(t)
	w.server.off = -24 * time.Hour
	welcome, err := Join(t.Context(), w.line(w.at), w.request("laptop"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if (welcome.Off - 24*time.Hour).Abs() > time.Minute {
		t.Errorf("it says %v", welcome.Off)
	}
	w.server.join = func(JoinRequest) (*Welcome, error) { return nil, Refuse(ClockWrong, "the clock") }
	_, err = Join(t.Context(), w.line(w.at), w.request("laptop"), nil)
	if r := wantRefusal(t, err, ClockWrong); (r.Off - 24*time.Hour).Abs() > time.Minute {
		t.Errorf("it says %v", r.Off)
	}
}

// ofAnotherTime returns the TLS configuration of a coordinator whose certificate has the given time.
func (w *world) ofAnotherTime(begin time.Time, life time.Duration) *tls.Config {
	w.t.Helper()
	issued, err := w.signer.Issue(collective.Request{Name: "hub", NotBefore: begin, Validity: life, Reissue: true})
	if err != nil {
		w.t.Fatal(err)
	}
	cert, err := tls.LoadX509KeyPair(issued.CertFile, issued.KeyFile)
	if err != nil {
		w.t.Fatal(err)
	}
	cert.Certificate = append(cert.Certificate, rootsOf(w.hub.Trust())...)
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{alpn}, Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequestClientCert}
}

// A certificate that has ended is no matter of clocks when they agree.
func TestEndedCoordinator(t *testing.T) {
	w := newWorld(t)
	at := w.serveTLS("hub", w.ofAnotherTime(time.Now().Add(-2*time.Hour), time.Hour))
	_, err := Join(t.Context(), w.line(at), w.request("laptop"), nil)
	if !errors.Is(err, ErrUnreachable) || errors.Is(err, ClockWrong) {
		t.Errorf("got %v", err)
	}
}

func TestLargeRequests(t *testing.T) {
	w := newWorld(t)
	p := peer{to: w.at, verify: anyone}
	_, err := p.call(t.Context(), pathJoin, JoinRequest{Request: strings.Repeat("x", maxRequest)})
	wantRefusal(t, err, Malformed)
	_, err = p.call(t.Context(), pathJoin, "no object")
	wantRefusal(t, err, Malformed)
	w.server.trust = func() *TrustMessage { return &TrustMessage{Roots: strings.Repeat("x", maxAnswer)} }
	if _, err := FetchTrust(t.Context(), []Endpoint{w.at}); err == nil {
		t.Error("took an answer that is too large")
	}
	if _, err := p.call(t.Context(), "/", nil); err == nil {
		t.Error("took what is no answer")
	}
}
