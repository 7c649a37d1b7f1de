package pathserver

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/paths"
	"github.com/detour-collective/dcol/internal/paths/known"
	"github.com/detour-collective/dcol/internal/strangers"
)

const (
	// leaseTime is the time after which the server forgets flows: twice the time after which agents renew them.
	leaseTime = 10 * time.Minute
	// maxLeases bounds the pairs of hosts with flows, and leasesOfMember those of one member.
	maxLeases      = 65536
	leasesOfMember = 1024
	requestTime    = 10 * time.Second
	// gatherTime is the time for which a request waits for others, so that they can be placed together.
	gatherTime = 20 * time.Millisecond
)

// limits bound the connections of clients that have not shown a certificate yet, and the connections of one member. An
// agent may ask about all its servers at the same time.
var limits = strangers.Limits{Total: 1024, PerSource: 256, Patience: requestTime, PerMember: 512}

// Server answers requests about one network. Its methods may be called concurrently.
type Server struct {
	identity *collective.Identity
	network  atomic.Pointer[known.Network]
	now      func() time.Time
	log      *slog.Logger
	work     chan struct{} // has an element for each computation in progress, at most one a processor

	mu      sync.Mutex // guards the fields below
	places  *known.Scheduler
	pairs   map[string]map[string]netip.AddrPort // destinations of leases, by member and key
	waiting *batch                               // requests that wait; nil: none do
	hearing map[string]chan []netip.AddrPort     // open MovedRequests by member; each channel takes one answer
}

// batch holds requests that are placed together.
type batch struct {
	asked  []known.Asked
	chosen [][]int
	placed chan struct{} // closed when chosen is known
}

func (b *batch) has(key string) bool {
	return b != nil && slices.ContainsFunc(b.asked, func(a known.Asked) bool { return a.Key == key })
}

// New returns a Server. Serve must be called next.
func New(id *collective.Identity, n *known.Network, now func() time.Time, log *slog.Logger) *Server {
	s := &Server{
		identity: id, now: now, log: log, work: make(chan struct{}, runtime.GOMAXPROCS(0)),
		places: known.NewScheduler(), pairs: map[string]map[string]netip.AddrPort{},
		hearing: map[string]chan []netip.AddrPort{},
	}
	s.network.Store(n)
	return s
}

// Replace makes the server answer about a changed network, which must come from known.Network.Renewed. Flows keep their
// paths if these still exist. Members with flows on links that do not exist any more are told.
func (s *Server) Replace(n *known.Network) {
	s.network.Store(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell(s.places.Changed(n.Has))
}

// Serve answers until ctx ends. It closes the listener.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	h := s.web(s.handler())
	stop := context.AfterFunc(ctx, func() { _ = h.Close() })
	defer stop()
	err := h.Serve(tls.NewListener(strangers.NewListener(l, limits, strangers.NewSeen()), s.identity.ServerTLS(alpn)))
	if errors.Is(err, http.ErrServerClosed) && ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("answer requests about paths: %w", err)
}

// web returns an HTTP server with the handler.
func (s *Server) web(handler http.Handler) *http.Server {
	h := &http.Server{
		Handler: handler, MaxHeaderBytes: 16 << 10, ReadTimeout: requestTime, WriteTimeout: 2 * requestTime,
		ConnState: s.admit, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	// Revocations are checked in the handshake only, so a connection must not serve later requests. Idle connections
	// would also use up the limits.
	h.SetKeepAlivesEnabled(false)
	return h
}

// admit makes a connection count as a member's and not as a stranger's. The HTTP server calls it when the connection's
// first byte arrives. By then, the handshake has proved that the client has the certificate's key.
func (s *Server) admit(conn net.Conn, state http.ConnState) {
	secure, ok := conn.(*tls.Conn)
	if !ok || state != http.StateActive {
		return
	}
	member, err := s.identity.Peer(secure.ConnectionState())
	if stranger, bounded := secure.NetConn().(*strangers.Conn); bounded && err == nil {
		stranger.Admit(member.Name)
	}
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST "+placePath, answering(s, s.place))
	mux.Handle("POST "+flowPath, answering(s, s.flow))
	mux.Handle("POST "+movedPath, open(answering(s, s.moved)))
	return mux
}

// open extends a request's deadlines to the duration of a MovedRequest.
func open(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, until := http.NewResponseController(w), time.Now().Add(movedTime+requestTime)
		_, _ = c.SetReadDeadline(until), c.SetWriteDeadline(until) // on an error the request ends early, and the member asks again
		h.ServeHTTP(w, r)
	})
}

// refusal is an error with an HTTP status.
type refusal struct {
	status int
	error
}

func (r refusal) Unwrap() error { return r.error }

// answering returns a handler of members' requests.
func answering[Q, A any](s *Server, answer func(ctx context.Context, member string, q *Q) (A, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a, err := func() (a A, err error) {
			member, err := s.identity.Peer(*r.TLS)
			if err != nil {
				return a, refusal{http.StatusForbidden, err}
			}
			var q Q
			d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest))
			d.DisallowUnknownFields()
			if err := d.Decode(&q); err != nil {
				status := http.StatusBadRequest
				var tooLarge *http.MaxBytesError
				if errors.As(err, &tooLarge) {
					status = http.StatusRequestEntityTooLarge
				}
				return a, refusal{status, fmt.Errorf("read the request: %w", err)}
			}
			return answer(r.Context(), member.Name, &q)
		}()
		status, body := http.StatusOK, any(a)
		if err != nil {
			status, body = http.StatusInternalServerError, problem{err.Error()}
			var refused refusal
			if errors.As(err, &refused) {
				status = refused.status
			}
			s.log.Debug("a request about paths is refused", "from", r.RemoteAddr, "err", err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body) // the client may have disconnected
	})
}

// compute runs f, which keeps a processor busy, once one is free.
func (s *Server) compute(ctx context.Context, f func() error) error {
	select {
	case s.work <- struct{}{}:
		defer func() { <-s.work }()
		return f()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// refused adds a status to an error of package known.
func refused(err error) error {
	switch {
	case errors.Is(err, known.ErrUnknown), errors.Is(err, known.ErrNoPath):
		return refusal{http.StatusNotFound, err}
	case errors.Is(err, known.ErrFamily):
		return refusal{http.StatusBadRequest, err}
	}
	return refusal{http.StatusConflict, err}
}

func bad(format string, args ...any) error {
	return refusal{http.StatusBadRequest, fmt.Errorf(format, args...)}
}

func (s *Server) place(ctx context.Context, member string, q *PlaceRequest) (a PlaceAnswer, err error) {
	switch {
	case !q.Source.IsValid() || !q.Destination.IsValid() || q.Destination.Port() == 0:
		return a, bad("source must be an address, and destination an address with a port")
	case q.Paths < 1 || q.Paths > maxPaths:
		return a, bad("paths must be from 1 to %d, not %d", maxPaths, q.Paths)
	case q.Each < 1 || q.Each > maxEach:
		return a, bad("each must be from 1 to %d, not %d", maxEach, q.Each)
	}
	var ways []known.Way
	err = s.compute(ctx, func() (err error) {
		if ways, err = s.network.Load().WaysVia(q.detour(), paths.UnusedPorts()); err != nil {
			return refused(err)
		}
		return nil
	})
	if err != nil {
		return a, err
	}
	links := make([][]int, len(ways))
	for i, w := range ways {
		links[i] = append(append(links[i], w.There.Links...), w.Back.Links...)
	}
	// Agents can move open flows to another direct path, but not to other legs of a detour.
	asked := known.Asked{Host: member, Key: keyOf(member, q), Ways: links, Wanted: q.Paths, Moves: !q.Waypoint.IsValid()}
	chosen, err := s.reserve(asked, q.Destination)
	a.Seconds = int(leaseTime / time.Second)
	for _, i := range chosen {
		w := ways[i]
		a.Paths = append(a.Paths, Placed{w.Ports[:min(len(w.Ports), q.Each)], w.There.Nodes, w.Back.Nodes})
	}
	return a, err
}

func keyOf(member string, q *PlaceRequest) string {
	return fmt.Sprint(member, " ", q.Source, " ", q.Destination, " ", q.Waypoint)
}

// reserve places flows, together with those of other requests that arrive within gatherTime.
func (s *Server) reserve(asked known.Asked, destination netip.AddrPort) ([]int, error) {
	b, i, err := s.join(asked, destination)
	if err != nil {
		return nil, err
	}
	<-b.placed
	return b.chosen[i], nil
}

// join adds a request to the waiting batch, and returns the batch and the request's index in it.
func (s *Server) join(asked known.Asked, destination netip.AddrPort) (b *batch, i int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.places.Leases(s.now())
	mine := s.pairs[asked.Host]
	for k := range mine {
		if !s.places.Holds(k) && !s.waiting.has(k) {
			delete(mine, k)
		}
	}
	if s.waiting != nil {
		all += len(s.waiting.asked)
	}
	if _, holds := mine[asked.Key]; !holds && (all >= maxLeases || len(mine) >= leasesOfMember) {
		return nil, 0, refusal{http.StatusTooManyRequests, errors.New("too many flows are placed: ask again in some minutes")}
	}
	if mine == nil {
		mine = map[string]netip.AddrPort{}
		s.pairs[asked.Host] = mine
	}
	mine[asked.Key] = destination
	if s.waiting == nil {
		s.waiting = &batch{placed: make(chan struct{})}
		time.AfterFunc(gatherTime, s.placeWaiting)
	}
	s.waiting.asked = append(s.waiting.asked, asked)
	return s.waiting, len(s.waiting.asked) - 1, nil
}

// placeWaiting places the flows of all waiting requests.
func (s *Server) placeWaiting() {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, now := s.waiting, s.now()
	s.waiting = nil
	b.chosen = s.places.PlaceAll(b.asked, now, now.Add(leaseTime))
	s.tell(s.places.Relieve(b.asked, func(member string) bool { return s.hearing[member] != nil }, now))
	close(b.placed)
}

// tell answers the MovedRequests of members whose flows were moved. Members without one notice the move when they renew
// their flows.
func (s *Server) tell(moved []known.Moved) {
	news := map[string][]netip.AddrPort{}
	for _, m := range moved {
		if s.hearing[m.Host] != nil {
			news[m.Host] = append(news[m.Host], s.pairs[m.Host][m.Key])
		}
	}
	for member, destinations := range news {
		s.hearing[member] <- destinations
		delete(s.hearing, member)
	}
}

// moved answers a MovedRequest.
func (s *Server) moved(ctx context.Context, member string, _ *MovedRequest) (a MovedAnswer, err error) {
	told := make(chan []netip.AddrPort, 1)
	s.mu.Lock()
	if before := s.hearing[member]; before != nil {
		before <- nil
	}
	s.hearing[member] = told
	s.mu.Unlock()
	end := time.NewTimer(movedTime)
	defer end.Stop()
	select {
	case a.Destinations = <-told:
		return a, nil
	case <-end.C:
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hearing[member] == told {
		delete(s.hearing, member)
		return a, err
	}
	return MovedAnswer{Destinations: <-told}, nil // the answer came at the last moment
}

func (s *Server) flow(ctx context.Context, _ string, q *FlowRequest) (a FlowAnswer, err error) {
	if !q.Source.IsValid() || !q.Destination.IsValid() {
		return a, bad("source and destination must be addresses with ports")
	}
	for _, way := range []struct {
		from, to netip.AddrPort
		nodes    *[]string
	}{{q.Source, q.Destination, &a.There}, {q.Destination, q.Source, &a.Back}} {
		err := s.compute(ctx, func() error {
			route, err := s.network.Load().Path(known.Flow{Source: way.from, Destination: way.to, Protocol: packet.ProtocolTCP})
			if err != nil {
				return refused(err)
			}
			*way.nodes = route.Nodes
			return nil
		})
		if err != nil {
			return a, err
		}
	}
	return a, nil
}
