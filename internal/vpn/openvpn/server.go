package openvpn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ServerConfig is what a Server needs.
type ServerConfig struct {
	Interface string // made by the server; whose it is gives it addresses and sets it up
	Port      int    // UDP
	Files     Files
	MTU       int    // of the interface, see MTU
	Dir       string // of this server alone: configuration, sockets
	Log       *slog.Logger
}

// Server is the end of a tunnel that many members connect to.
type Server struct {
	log   *slog.Logger
	base  *base
	guard *guard
	stop  context.CancelFunc
	done  chan struct{}
	err   error // of taking it down; after done

	mu       sync.Mutex
	problem  error // why it does not run
	admitted map[string][]netip.Prefix
	sessions map[string]*session // of the running openvpn, by its numbers
}

// StartServer starts OpenVPN as a server and returns when it serves. It does so until Stop, or until
// ctx ends. Errors are a *MissingError, *OldError, *TUNError or *PortError where one fits.
func StartServer(ctx context.Context, c ServerConfig) (*Server, error) {
	s, err := startServer(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("start an OpenVPN server: %w", err)
	}
	return s, nil
}

func startServer(ctx context.Context, c ServerConfig) (*Server, error) {
	if c.Port < 1 || c.Port > 65535 {
		return nil, fmt.Errorf("%d is no UDP port: give one from 1 to 65535", c.Port)
	}
	base, err := openBase(c.Interface, c.MTU, c.Dir, &c.Files)
	if err != nil {
		return nil, err
	}
	config, err := render(serverDirectives(c, base.dir, serverProto()))
	if err != nil {
		return nil, errors.Join(err, base.close())
	}
	guard, err := newGuard(c.Interface, uint16(c.Port))
	if err != nil {
		return nil, errors.Join(err, base.close())
	}
	s := &Server{
		log: c.Log.With("interface", c.Interface), base: base, guard: guard, done: make(chan struct{}),
		admitted: map[string][]netip.Prefix{}, sessions: map[string]*session{},
	}
	launch := func(ctx context.Context) (child, error) { return s.launch(ctx, config, c.Port) }
	first, err := launch(ctx)
	if err != nil {
		return nil, errors.Join(err, guard.close(), base.close())
	}

	ctx, s.stop = context.WithCancel(ctx)
	d := newDaemon(launch, s.down, s.log)
	var running sync.WaitGroup
	running.Go(func() { d.run(ctx, first) })
	running.Go(func() { s.look(ctx, c.Files, d.restart) })
	go func() {
		running.Wait()
		s.err = errors.Join(guard.close(), base.close())
		close(s.done)
	}()
	return s, nil
}

// Stop ends OpenVPN and returns when nothing of the server is left.
func (s *Server) Stop() {
	s.stop()
	<-s.done
}

// Done is closed when nothing of the server is left.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err is what went wrong in taking the server down, once it is Done. An OpenVPN that dies does not
// end the server; Problem says so.
func (s *Server) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

// Problem says why OpenVPN does not run now; nil if it does.
func (s *Server) Problem() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem
}

// serverProto takes both families where the kernel has both.
func serverProto() string {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "udp4"
	}
	unix.Close(fd)
	return "udp6"
}

// launch runs one openvpn and waits until it serves.
func (s *Server) launch(ctx context.Context, config string, port int) (child, error) {
	serving := make(chan struct{})
	var once sync.Once
	var clients clientNotices
	spec := s.base.spec(s.log)
	spec.notice = func(p *process, n notice) {
		switch n.kind {
		case "STATE":
			if st, ok := parseState(n.text); ok && st.name == "CONNECTED" {
				once.Do(func() { close(serving) })
			}
		case "CLIENT":
			if c, ok := clients.add(n.text); ok {
				s.client(p, c)
			}
		}
	}
	s.forget()
	p, err := spec.start(ctx, config)
	if err != nil {
		return nil, err
	}
	if err := p.await(ctx, serving); err != nil {
		// The number is EADDRINUSE's.
		if exit := (*ExitError)(nil); errors.As(err, &exit) && strings.Contains(exit.Words, "(errno=98)") {
			err = &PortError{Port: port}
		}
		return nil, err
	}
	s.mu.Lock()
	s.problem = nil
	s.mu.Unlock()
	return p, nil
}

func (s *Server) down(err error, _ time.Duration) {
	s.mu.Lock()
	s.problem = err
	s.mu.Unlock()
	s.forget()
}

// forget drops the sessions of an openvpn that has ended.
func (s *Server) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.sessions)
	if err := s.setGuard(); err != nil {
		s.log.Warn("cannot close the guard for clients that have gone", "error", err)
	}
}

// lookEvery is how often a server looks at what others may change: the guard, which a reloaded
// firewall takes away, and the files of its identity.
const lookEvery = 5 * time.Second

func (s *Server) look(ctx context.Context, files Files, restart func()) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	renewal := renewal{read: files.versions()}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		switch restored, err := s.guard.check(); {
		case err != nil:
			s.log.Warn("cannot look after the guard of OpenVPN's port", "error", err)
		case restored:
			s.log.Warn("somebody had removed the guard of OpenVPN's port; it is back", "table", s.guard.table.Table.Name)
		}
		if renewal.due(files.versions()) {
			s.log.Info("the certificate was replaced; OpenVPN is started anew with it")
			restart()
		}
	}
}
