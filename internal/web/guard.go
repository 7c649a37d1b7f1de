package web

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"
)

const (
	// codeLife and sessionLife are the times for which a code, and the session that it opens, are valid.
	codeLife    = 5 * time.Minute
	sessionLife = 12 * time.Hour
	// mostSecrets bounds the codes, and the sessions, that are valid at a time. The oldest are dropped first.
	mostSecrets = 16
)

// guard decides which requests are answered.
type guard struct {
	mu       sync.Mutex
	codes    secrets
	sessions secrets
}

func newGuard() *guard {
	return &guard{codes: secrets{life: codeLife}, sessions: secrets{life: sessionLife}}
}

// secrets are random texts that are valid for a time. Only their hashes are kept, so that the time of a comparison
// reveals nothing.
type secrets struct {
	life time.Duration
	list []secret // the oldest first
}

type secret struct {
	hash   [sha256.Size]byte
	until  time.Time
	reader Reader
}

func (s *secrets) add(r Reader, now time.Time) string {
	text := rand.Text()
	s.list = append(s.list, secret{sha256.Sum256([]byte(text)), now.Add(s.life), r})
	s.list = s.list[max(len(s.list)-mostSecrets, 0):]
	return text
}

// find returns the index of a valid secret, or -1.
func (s *secrets) find(text string, now time.Time) int {
	hash := sha256.Sum256([]byte(text))
	for i, x := range s.list {
		if x.hash == hash && now.Before(x.until) {
			return i
		}
	}
	return -1
}

func (g *guard) code(r Reader, now time.Time) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.codes.add(r, now)
}

// open uses up a code and returns the token of a new session of the same reader.
func (g *guard) open(code string, now time.Time) (token string, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := g.codes.find(code, now)
	if i < 0 {
		return "", false
	}
	r := g.codes.list[i].reader
	g.codes.list = append(g.codes.list[:i], g.codes.list[i+1:]...)
	return g.sessions.add(r, now), true
}

// reader returns the reader of the session with a token, and the session's end, if the token is valid.
func (g *guard) reader(token string, now time.Time) (r Reader, until time.Time, valid bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := g.sessions.find(token, now)
	if i < 0 {
		return Reader{}, time.Time{}, false
	}
	return g.sessions.list[i].reader, g.sessions.list[i].until, true
}

// local rejects requests that other sites' pages cause. Their Host header has the name of the other site (DNS
// rebinding), or their Origin header does.
func (g *guard) local(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case !isLoopback(r.Host):
			http.Error(w, "this page is only served to this host: open it by the address that dcol web prints", http.StatusForbidden)
		case !sameOrigin(r):
			http.Error(w, "this request comes from another site's page", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// isLoopback reports whether a Host header names this host itself. It accepts any port, because a tunnel may use
// another one.
func isLoopback(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	addr, err := netip.ParseAddr(name)
	return name == "localhost" || err == nil && addr.IsLoopback()
}

// sameOrigin reports whether a request comes from the page itself, from a user who opens it, or from a program other
// than a browser. A program may only read, unless it sends the page's origin.
func sameOrigin(r *http.Request) bool {
	origin, site := r.Header.Get("Origin"), r.Header.Get("Sec-Fetch-Site")
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	navigates := reads && r.Header.Get("Sec-Fetch-Mode") == "navigate" && !strings.HasPrefix(r.URL.Path, "/api/")
	switch {
	case origin != "":
		return origin == "http://"+r.Host
	case site == "same-origin" || site == "none" || navigates:
		return true
	}
	return site == "" && reads // a program other than a browser
}

type readerKey struct{}

// session rejects requests without the token of a valid session, and adds the session's Reader to the others. Answers that
// continue, such as the stream, end with the session.
func (g *guard) session(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		reader, until, valid := g.reader(token, time.Now())
		if !valid {
			http.Error(w, "this page has no session, or its session has ended: run dcol web, and open the address that it prints", http.StatusUnauthorized)
			return
		}
		recognise(r.Context())
		ctx, cancel := context.WithDeadline(r.Context(), until)
		defer cancel()
		next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, readerKey{}, reader)))
	})
}

// readerOf returns the Reader that guard.session added.
func readerOf(r *http.Request) Reader {
	reader, _ := r.Context().Value(readerKey{}).(Reader)
	return reader
}

// logReaders rejects requests of readers who may not see the attribution log.
func logReaders(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !readerOf(r).Log {
			answer(w)(nil, errors.New("only root may read the attribution log: run dcol web as root, and open the address that it prints"))
			return
		}
		next(w, r)
	}
}

// sessionRequest has the code from the page's address.
type sessionRequest struct {
	Code string `json:"code"`
}

// session has the token that each request of the page needs.
type session struct {
	Token string `json:"token"`
}

// begin begins a session with a code. The code is used up then, because the browser may keep the page's address.
func (g *guard) begin(ctx context.Context, r sessionRequest) (session, error) {
	token, ok := g.open(r.Code, time.Now())
	if !ok {
		return session{}, errors.New("this address was used already or is too old: run dcol web, and open the address that it prints")
	}
	recognise(ctx)
	return session{token}, nil
}
