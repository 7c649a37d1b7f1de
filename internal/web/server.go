// Package web serves a page with the agent's state on a loopback address. The page loads nothing from other hosts. Every
// user of this host can connect to the port and gets the page's files. To see the state, the page needs a code, which
// the agent gives to root and operators. The page exchanges it for a session's token, and sends the token with each
// request. It is not a cookie, because browsers send cookies to all ports of a host, also those of other users.
//
//	guard.go   which requests are answered: codes and sessions
//	strangers.go  how many connections without a session are open
//	hub.go     the stream of states
//	why.go     explanations of paths
//	assets     the page
package web

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

//go:embed assets
var assets embed.FS

// Agent answers the page's requests.
type Agent interface {
	Status(context.Context) (api.Status, error)
	Members(context.Context) (api.Members, error)
	History(context.Context, api.HistoryRequest) (api.History, error)
	Why(context.Context, api.WhyRequest) (api.Why, error)
	Steer(context.Context, api.SteerRequest) (api.Steering, error)
	Log(context.Context, api.LogRequest) (api.Log, error)
}

// Reader is the user for whom the page was opened.
type Reader struct {
	// Log reports whether the reader may see the attribution log. Operators may not.
	Log bool `json:"log"`
}

// longestRequest bounds the body of a request, in bytes.
const longestRequest = 4096

// Server serves the page. New starts to listen, and Run must follow.
type Server struct {
	listener net.Listener
	guard    *guard
	hub      *hub
	http     *http.Server
}

// New listens on a loopback address at any free port. It uses IPv4 if possible, otherwise IPv6.
func New(agent Agent, log *slog.Logger) (*Server, error) {
	var failed error
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", at)
		if err == nil {
			return newServer(l, agent, log), nil
		}
		failed = errors.Join(failed, err)
	}
	return nil, fmt.Errorf("serve the page: %w", failed)
}

func newServer(l net.Listener, agent Agent, log *slog.Logger) *Server {
	return newServerOf(l, newHub(agent), log)
}

func newServerOf(l net.Listener, h *hub, log *slog.Logger) *Server {
	s := &Server{listener: l, guard: newGuard(), hub: h}
	strangers := &strangers{}
	s.http = &http.Server{
		Handler: s.handler(h.agent), ConnState: strangers.take, ConnContext: strangers.context, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return s
}

// Link returns the page's address with a new code. It begins a session for the reader once, within codeLife. Browsers do
// not send the part of an address behind #: the page itself reads the code there.
func (s *Server) Link(r Reader) string {
	return "http://" + s.listener.Addr().String() + "/#code=" + s.guard.code(r, time.Now())
}

// Run serves the page until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watched := make(chan struct{})
	go func() { defer close(watched); s.hub.run(ctx) }()
	stop := context.AfterFunc(ctx, func() { _ = s.http.Close() })
	defer stop()
	err := s.http.Serve(s.listener)
	cancel()
	<-watched
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the page: %w", err)
	}
	return nil
}

func (s *Server) handler(agent Agent) http.Handler {
	files, err := fs.Sub(assets, "assets")
	if err != nil {
		panic(err) // cannot happen: the folder is embedded
	}
	open := http.NewServeMux() // for requests that need no session
	open.Handle("/", http.FileServerFS(files))
	open.HandleFunc("POST /api/session", asked(s.guard.begin))
	own := http.NewServeMux()
	own.HandleFunc("GET /api/stream", s.hub.stream)
	own.HandleFunc("GET /api/members", func(w http.ResponseWriter, r *http.Request) {
		answer(w)(agent.Members(r.Context()))
	})
	own.HandleFunc("POST /api/history", asked(agent.History))
	own.HandleFunc("POST /api/why", asked(explains(agent)))
	own.HandleFunc("POST /api/steer", asked(agent.Steer))
	own.HandleFunc("POST /api/log", logReaders(asked(agent.Log)))
	own.HandleFunc("GET /api/reader", func(w http.ResponseWriter, r *http.Request) { answer(w)(readerOf(r), nil) })
	open.Handle("/api/", s.guard.session(own))
	return s.guard.local(open)
}

// asked returns a handler of requests with a body.
func asked[Request, Answer any](ask func(context.Context, Request) (Answer, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var req Request
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, longestRequest)).Decode(&req); err != nil {
			answer(w)(nil, fmt.Errorf("read the request: %w", err))
			return
		}
		a, err := ask(r.Context(), req)
		answer(w)(a, err)
	}
}

// answer returns a function that writes an answer or an error.
func answer(w http.ResponseWriter) func(any, error) {
	return func(v any, err error) {
		w.Header().Set("Content-Type", "application/json")
		if err != nil {
			w.WriteHeader(http.StatusUnprocessableEntity)
			v = api.Failure{Message: err.Error()}
		}
		_ = json.NewEncoder(w).Encode(v) // fails only if the browser has gone
	}
}
