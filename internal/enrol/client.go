package enrol

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
)

// ErrUnreachable is returned if no coordinator has answered.
var ErrUnreachable = errors.New("no coordinator can be reached")

// attempt bounds the time that one coordinator may take.
const attempt = 20 * time.Second

// Join makes this host a member. The request is from collective.NewRequest. The returned certificate has been verified:
// it has the request's key and is under the line's root. If the answer is lost, Join may be called again with the same
// line and key. The error may be a *Refusal or ErrUnreachable.
func Join(ctx context.Context, l Line, request []byte, lans []netip.Prefix) (*Welcome, error) {
	parsed, err := collective.ParseRequest(request)
	if err != nil {
		return nil, fmt.Errorf("join %s: %w", l.Collective, err)
	}
	w, err := eachUntil(ctx, l.Coordinators, func(ctx context.Context, to Endpoint) (*Welcome, error) {
		a, err := peer{to: to, verify: l.verify}.call(ctx, pathJoin, JoinRequest{
			Collective: l.Collective, Secret: l.Secret, Request: string(request), Time: time.Now(), LANs: cutLANs(lans),
		})
		if err != nil {
			return nil, err
		}
		return a.welcome()
	})
	if err == nil {
		err = l.accept(w, parsed)
	}
	if err != nil {
		return nil, fmt.Errorf("join %s: %w", l.Collective, err)
	}
	return w, nil
}

// accept verifies what a coordinator has answered.
func (l Line) accept(w *Welcome, request *collective.SigningRequest) error {
	trust, err := collective.ParseTrust([]byte(w.Roots), []byte(w.Lists))
	if err != nil {
		return err
	}
	known := false
	for _, der := range rootsOf(trust) {
		known = known || HashRoot(der) == l.Root
	}
	if !known || trust.Collective() != l.Collective {
		return fmt.Errorf("the coordinator's roots are not those of %s in the invitation", l.Collective)
	}
	m, err := w.Member(trust)
	if err != nil {
		return err
	}
	if m.Key != request.Key() || m.Name != request.Name() {
		return fmt.Errorf("the coordinator has signed a certificate for %s, or for another key", m.Name)
	}
	return nil
}

// Member verifies the certificate and returns the member it names.
func (w *Welcome) Member(trust *collective.Trust) (collective.Member, error) {
	var chain [][]byte
	for block, rest := pem.Decode([]byte(w.Chain)); block != nil; block, rest = pem.Decode(rest) {
		chain = append(chain, block.Bytes)
	}
	m, err := trust.Verify(chain, time.Now())
	if err != nil {
		return m, fmt.Errorf("verify the new certificate: %w", err)
	}
	return m, nil
}

// Renew requests a new certificate for this member's key. If the collective has other roots by now, they are fetched
// and taken first. The caller takes what is returned: TakeTrust, then TakeCertificate.
func Renew(ctx context.Context, id *collective.Identity, coordinators []Endpoint, lans []netip.Prefix) (*Welcome, error) {
	request, err := id.RenewalRequest()
	if err != nil {
		return nil, fmt.Errorf("renew the certificate: %w", err)
	}
	w, err := eachUntil(ctx, coordinators, func(ctx context.Context, to Endpoint) (*Welcome, error) {
		ask := func() (*answer, error) {
			p := peer{to: to, verify: verifyMember(id.Trust()), id: id}
			return p.call(ctx, pathRenew, RenewRequest{Request: string(request), Time: time.Now(), LANs: cutLANs(lans)})
		}
		a, err := ask()
		if errors.Is(err, collective.ErrOtherCA) && takeTrust(ctx, id, to) {
			a, err = ask()
		}
		if err != nil {
			return nil, err
		}
		return a.welcome()
	})
	if err != nil {
		return nil, fmt.Errorf("renew the certificate: %w", err)
	}
	return w, nil
}

// Leave ends this host's membership at a coordinator. A second call does no harm. The error may be a *Refusal or
// ErrUnreachable.
func Leave(ctx context.Context, id *collective.Identity, coordinators []Endpoint) error {
	_, err := eachUntil(ctx, coordinators, func(ctx context.Context, to Endpoint) (*answer, error) {
		a, err := peer{to: to, verify: verifyMember(id.Trust()), id: id}.call(ctx, pathLeave, LeaveRequest{Time: time.Now()})
		if err == nil && !a.Left {
			err = errStrange
		}
		return a, err
	})
	return err
}

// takeTrust fetches and takes roots and lists, and reports whether they were new.
func takeTrust(ctx context.Context, id *collective.Identity, from Endpoint) bool {
	t, err := FetchTrust(ctx, []Endpoint{from})
	if err != nil {
		return false
	}
	changed, err := id.TakeTrust([]byte(t.Roots), []byte(t.Lists))
	return err == nil && changed
}

// FetchTrust fetches roots and lists. It does not verify them: TakeTrust does.
func FetchTrust(ctx context.Context, coordinators []Endpoint) (*TrustMessage, error) {
	t, err := eachUntil(ctx, coordinators, func(ctx context.Context, to Endpoint) (*TrustMessage, error) {
		a, err := peer{to: to, verify: anyone}.call(ctx, pathTrust, nil)
		if err == nil && a.Trust == nil {
			err = errStrange
		}
		if err != nil {
			return nil, err
		}
		return a.Trust, nil
	})
	if err != nil {
		return nil, fmt.Errorf("fetch the collective's roots and revocation lists: %w", err)
	}
	return t, nil
}

var errStrange = errors.New("its answer is not that of a coordinator")

func (a *answer) welcome() (*Welcome, error) {
	if a.Welcome == nil {
		return nil, errStrange
	}
	a.Welcome.Time, a.Welcome.Off = a.Time, time.Since(a.Time).Round(time.Second)
	return a.Welcome, nil
}

// eachUntil asks coordinators in random order until one answers. A refusal is an answer, unless the coordinator is
// Unavailable, or its clock may be the wrong one.
func eachUntil[T any](ctx context.Context, all []Endpoint, ask func(context.Context, Endpoint) (*T, error)) (*T, error) {
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: none is configured", ErrUnreachable)
	}
	var errs []error
	for _, i := range rand.Perm(len(all)) {
		brief, cancel := context.WithTimeout(ctx, attempt)
		got, err := ask(brief, all[i])
		cancel()
		if err == nil {
			return got, nil
		}
		if r, ok := errors.AsType[*Refusal](err); ok && r.Reason != Unavailable && r.Reason != ClockWrong {
			return nil, err
		}
		errs = append(errs, fmt.Errorf("%v: %w", all[i], err))
	}
	err := errors.Join(errs...)
	if errors.Is(err, Unavailable) || errors.Is(err, ClockWrong) {
		return nil, err
	}
	return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
}

// cutLANs shortens the list of a host with very many networks, as the request would be refused.
func cutLANs(lans []netip.Prefix) []netip.Prefix { return lans[:min(len(lans), maxLANs)] }

// peer is a server to ask, and how to verify it.
type peer struct {
	to     Endpoint
	verify verifier
	id     *collective.Identity // to authenticate with; may be nil
}

// call makes one request. If it fails because the clocks differ, the error has the difference.
func (p peer) call(ctx context.Context, path string, body any) (*answer, error) {
	a, err := p.request(ctx, path, body)
	if _, clock := collective.AsClockError(err, time.Now()); !clock {
		return a, err
	}
	p.verify, p.id = p.verify.atAnyTime(), nil
	there, timeErr := p.request(ctx, pathTime, nil)
	if timeErr != nil {
		return nil, err
	}
	return nil, clockWrong(there.Time, time.Now(), err)
}

// clockWrong returns the refusal that this host gives itself when no certificate is valid by its clock.
func clockWrong(there, here time.Time, cause error) error {
	off := here.Sub(there).Round(time.Second)
	if max(off, -off) < MaxClockOff {
		return cause // the certificate has really ended
	}
	r := Refuse(ClockWrong, "%s", SayClocks(there, here))
	r.Off = off
	return r
}

// SayClocks describes the difference between two clocks.
func SayClocks(coordinator, here time.Time) string {
	const layout = "2006-01-02 15:04:05 UTC"
	off, word := here.Sub(coordinator), "ahead of it"
	if off < 0 {
		off, word = -off, "behind it"
	}
	return fmt.Sprintf("by the coordinator's clock it is %s, by this host's %s, %v %s",
		coordinator.UTC().Format(layout), here.UTC().Format(layout), off.Round(time.Second), word)
}

// request sends a POST with a body, or a GET if the body is nil.
func (p peer) request(ctx context.Context, path string, body any) (*answer, error) {
	method, content := http.MethodGet, io.Reader(nil)
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("write the request: %w", err)
		}
		method, content = http.MethodPost, bytes.NewReader(text)
	}
	// The dialer has the address; the URL's host is only the name.
	r, err := http.NewRequestWithContext(ctx, method, "https://"+p.to.Name+path, content)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := (&http.Transport{DialTLSContext: p.dial, DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if len(data) > maxAnswer {
		return nil, fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	}
	var a answer
	if err := json.Unmarshal(data, &a); err != nil {
		return nil, fmt.Errorf("%w (%s): %w", errStrange, response.Status, err)
	}
	if a.Time.IsZero() {
		return nil, fmt.Errorf("%w (%s)", errStrange, response.Status)
	}
	if a.Refusal != nil {
		a.Refusal.Off = time.Since(a.Time).Round(time.Second)
		return nil, a.Refusal
	}
	return &a, nil
}

func (p peer) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	plain, err := (&net.Dialer{Timeout: connectWithin}).DialContext(ctx, "tcp", p.to.Address)
	if err != nil {
		return nil, explainConnect(err, p.to.Address)
	}
	conn := tls.Client(plain, clientTLS(p.to.Name, p.verify, p.id))
	if err := conn.HandshakeContext(ctx); err != nil {
		plain.Close()
		return nil, explainHandshake(err)
	}
	return conn, nil
}
