package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// Agent answers the requests at the socket.
type Agent interface {
	Status(context.Context) (Status, error)
	Map(context.Context, MapRequest) (MapAnswer, error)
	SwitchWaypoint(context.Context, SwitchRequest) (Given, error)
	Convert(context.Context, ConvertRequest) (Converting, error)
	Steer(context.Context, SteerRequest) (Steering, error)
	Why(context.Context, WhyRequest) (Why, error)
	Spare(context.Context, SpareRequest) (Spared, error)
	Transport(context.Context) (Transport, error)
	UseCongestion(context.Context, CongestionRequest) (Transport, error)
	LogLevel(context.Context, LogLevelRequest) (LogLevels, error)
	Web(context.Context, WebRequest) (Web, error)
	History(context.Context, HistoryRequest) (History, error)
	Reload(context.Context, ReloadRequest) (Reloaded, error)
	Members(context.Context) (Members, error)
	Invite(context.Context, InviteRequest) (Invitation, error)
	Expel(context.Context, ExpelRequest) (Expulsion, error)
}

// Listen opens the socket. Only root may use it unless AllowGroup follows, because the agent sends traffic through
// other members' hosts. Listen replaces a socket that remained after a crash. The caller must ensure that no other
// agent runs.
func Listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("create the agent's run directory: %w", err)
	}
	if err := RemoveSocket(path); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("open the agent's socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("open the agent's socket: %w", err)
	}
	return l, nil
}

// RemoveSocket removes a socket that remained after a crash. It does not remove other kinds of files.
func RemoveSocket(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look for an old socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("the agent's socket cannot be made: %s exists and is not a socket: move it, or choose another run_dir", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove the old socket: %w", err)
	}
	return nil
}

// Serve answers on l until ctx ends.
func Serve(ctx context.Context, l net.Listener, agent Agent) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", telling(agent.Status))
	mux.HandleFunc("POST /v1/map", answering(agent.Map))
	mux.HandleFunc("POST /v1/waypoint", answering(agent.SwitchWaypoint))
	mux.HandleFunc("POST /v1/convert", answering(agent.Convert))
	mux.HandleFunc("POST /v1/steer", answering(agent.Steer))
	mux.HandleFunc("POST /v1/why", answering(agent.Why))
	mux.HandleFunc("POST /v1/spare", answering(agent.Spare))
	mux.HandleFunc("GET /v1/transport", telling(agent.Transport))
	mux.HandleFunc("POST /v1/congestion", owned(answering(agent.UseCongestion)))
	mux.HandleFunc("POST /v1/log-level", answering(agent.LogLevel))
	mux.HandleFunc("POST /v1/web", answering(agent.Web))
	mux.HandleFunc("POST /v1/history", answering(agent.History))
	mux.HandleFunc("POST /v1/reload", owned(answering(agent.Reload)))
	mux.HandleFunc("GET /v1/members", telling(agent.Members))
	mux.HandleFunc("POST /v1/invite", owned(answering(agent.Invite)))
	mux.HandleFunc("POST /v1/expel", owned(answering(agent.Expel)))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ConnContext: withUser}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the agent's socket: %w", err)
	}
	return nil
}

// telling returns a handler of requests without a body.
func telling[Answer any](ask func(context.Context) (Answer, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answered, err := ask(r.Context())
		answer(w, answered, err)
	}
}

// answering returns a handler of requests with a body.
func answering[Request, Answer any](ask func(context.Context, Request) (Answer, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var req Request
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4096)).Decode(&req); err != nil {
			answer(w, nil, fmt.Errorf("read the request: %w", err))
			return
		}
		answered, err := ask(r.Context(), req)
		answer(w, answered, err)
	}
}

func answer(w http.ResponseWriter, v any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		w.WriteHeader(http.StatusUnprocessableEntity)
		v = Failure{err.Error()}
	}
	// An error means that the client has disconnected.
	_ = json.NewEncoder(w).Encode(v)
}
