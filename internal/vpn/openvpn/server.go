package openvpn

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/durable"
	"github.com/detour-collective/dcol/internal/kernel/netstate/nft"
)

// ServerConfig configures a Server.
type ServerConfig struct {
	Interface string // created by the server; the caller configures it
	Port      uint16 // UDP
	Files     Files
	MTU       int    // of the interface, see MTU
	Dir       string // for the management socket; not shared
	Log       *slog.Logger
}

// Server is the end of a tunnel to which many members connect.
type Server struct {
	config ServerConfig
	runner *runner
	daemon *daemon
	log    *slog.Logger
	files  renewal

	mu       sync.Mutex
	guard    *nft.Kept
	conn     net.Conn // for commands to openvpn; nil: it does not run
	admitted map[string][]netip.Prefix
	sessions map[string]*session // of the running openvpn, by its client numbers
}

// StartServer starts OpenVPN as a server and returns when it accepts connections. It runs until
// Stop is called or ctx ends. Errors include *MissingError, *OldError and *vpn.TUNError.
func StartServer(ctx context.Context, config ServerConfig) (*Server, error) {
	s := &Server{
		config: config, files: renewal{read: config.Files.stamps()},
		admitted: map[string][]netip.Prefix{}, sessions: map[string]*session{},
	}
	if err := s.start(ctx); err != nil {
		return nil, fmt.Errorf("start an OpenVPN server: %w", err)
	}
	return s, nil
}

func (s *Server) start(ctx context.Context) (err error) {
	if s.runner, err = newRunner(s.config.Interface, s.config.Log); err != nil {
		return err
	}
	s.log = s.runner.log
	if s.guard, err = openGuard(s.config.Interface, s.config.Port, s.sources); err != nil {
		return errors.Join(err, s.runner.close())
	}
	s.daemon, err = startDaemon(ctx, s.log, s.run, s.close)
	return err
}

func (s *Server) close() error {
	CleanUpDir(s.config.Dir)
	s.mu.Lock() // CheckGuard may run
	defer s.mu.Unlock()
	return errors.Join(s.guard.Close(), s.runner.close())
}

// Stop ends OpenVPN and returns when interface and guard have been removed.
func (s *Server) Stop() error { return s.daemon.end() }

// Problem returns why OpenVPN does not run now, or nil if it does.
func (s *Server) Problem() error { return s.daemon.problem() }

// Tend starts openvpn anew if its certificate was replaced. Not for concurrent use.
func (s *Server) Tend() {
	if s.files.due(s.config.Files.stamps()) {
		s.log.Info("the certificate was replaced; OpenVPN is started anew with it")
		s.daemon.restart()
	}
}

// Removed delivers something when CheckGuard should be called, because another program has removed the guard's rules.
func (s *Server) Removed() <-chan struct{} { return s.guard.Removed() }

// CheckGuard restores the guard if another program has removed it, as a firewall does when it is reloaded.
func (s *Server) CheckGuard() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	restored, err := s.guard.Check()
	if restored {
		s.log.Warn("the guard of OpenVPN's port was removed by another program and has been restored", "table", s.config.Interface)
	}
	return err
}

// renewal detects when a server must be restarted because its certificate was replaced: a running
// OpenVPN server never reads it again. (A client reads it whenever it connects.)
type renewal struct {
	read []durable.Stamp // of the files that the running openvpn has read
	seen []durable.Stamp // found by the last check
}

// stamps returns the versions of the certificate, the key and the authority's certificate.
func (f Files) stamps() []durable.Stamp { return durable.Stamps(f.Certificate, f.Key, f.CA) }

// due reports whether the files have changed and are complete. Because they are replaced one by
// one, two successive checks must find the same versions.
func (r *renewal) due(now []durable.Stamp) bool {
	settled := slices.Equal(now, r.seen)
	r.seen = now
	if !settled || slices.Equal(now, r.read) || slices.Contains(now, durable.Stamp{}) {
		return false
	}
	r.read = now
	return true
}

// run runs one openvpn.
func (s *Server) run(ctx context.Context, ready func()) error {
	listener, err := listen(s.config.Dir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var managing sync.WaitGroup
	managing.Go(func() {
		s.manage(listener)
		cancel(errors.New("openvpn has closed its management connection, so that nobody knows its state"))
	})
	err = s.runner.run(ctx, serverArguments(s.config, serverProto(), listener.Addr().String()), ready, func(logLine) {})
	listener.Close()
	s.setConn(nil)
	managing.Wait()
	if strings.Contains(err.Error(), "(errno=98)") { // EADDRINUSE
		return fmt.Errorf("UDP port %[1]d is in use: choose another one, or end the program that has it (ss -ulnp sport = %[1]d)", s.config.Port)
	}
	return err
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

// Dir names the folder of the server's management socket in the agent's run-time directory.
const Dir = "openvpn"

func managementSocket(dir string) string { return filepath.Join(dir, "management.sock") }

// listen creates the management socket, to which openvpn connects. No other user can enter its folder.
func listen(dir string) (*net.UnixListener, error) {
	path := managementSocket(dir)
	// The kernel's struct sockaddr_un has 108 bytes for a path and its end.
	const longest = 107
	if len(path) > longest {
		return nil, fmt.Errorf("the path of openvpn's socket is too long: %s has %d bytes, %d are possible: choose a shorter run_dir", path, len(path), longest)
	}
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700)); err != nil {
		return nil, fmt.Errorf("make openvpn's folder: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // left by an agent that was killed
		return nil, fmt.Errorf("remove the old management socket: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for openvpn: %w", err)
	}
	return listener, nil
}

// CleanUpDir removes the management socket that a killed agent has left, and its folder if nothing else
// is in it.
func CleanUpDir(dir string) {
	os.Remove(managementSocket(dir))
	os.Remove(dir)
}
