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

// ServerConfig configures a Server.
type ServerConfig struct {
	Interface string // created by the server; the caller sets its addresses and brings it up
	Port      int    // UDP
	Files     Files
	MTU       int    // of the interface, see MTU
	Dir       string // for configuration and sockets; not shared
	Log       *slog.Logger
}

// Server is the end of a tunnel to which many members connect.
type Server struct {
	log   *slog.Logger
	base  *base
	guard *guard
	stop  context.CancelFunc
	done  chan struct{}
	err   error // of stopping it; valid after done

	mu       sync.Mutex
	problem  error // why it does not run
	admitted map[string][]netip.Prefix
	sessions map[string]*session // of the running openvpn, by its client numbers
}

// StartServer starts OpenVPN as a server and returns when it accepts connections. It runs until
// Stop is called or ctx ends. Errors include *MissingError, *OldError, *TUNError and *PortError.
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

// Stop ends OpenVPN and returns when the server has been removed completely.
func (s *Server) Stop() {
	s.stop()
	<-s.done
}

// Done returns a channel that is closed when the server has been removed completely.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err returns the error of removing the server, once it is Done. The death of an OpenVPN does not
// end the server; see Problem.
func (s *Server) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

// Problem returns why OpenVPN does not run now, or nil if it does.
func (s *Server) Problem() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem
}

// serverProto returns the protocol for both address families if the kernel has both.
func serverProto() string {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "udp4"
	}
	unix.Close(fd)
	return "udp6"
}

// launch starts openvpn and waits until it accepts connections.
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

// lookEvery is how often a server checks what others may change: the guard, which a firewall reload
// may remove, and its identity files.
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
