package wireguard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
)

// userspace is the embedded WireGuard on a TUN interface.
type userspace struct {
	device *device.Device
	tun    *tunDevice
	voice  *voice
}

// openUserspace starts the embedded WireGuard. kernel is why the kernel's is not used, or nil if it
// was not requested.
func openUserspace(c Config, kernel error) (engine, *netstate.TunnelLink, error) {
	t, err := openTUN(c.Interface, c.MTU)
	if err != nil {
		return nil, nil, tunError(err, kernel)
	}
	v := &voice{log: c.Log.With("interface", c.Interface)}
	u := &userspace{tun: t, voice: v, device: device.NewDevice(t, conn.NewStdNetBind(), &device.Logger{Verbosef: v.say, Errorf: v.say})}
	link, err := u.start(c)
	if err != nil {
		return nil, nil, errors.Join(err, u.close())
	}
	return u, link, nil
}

func (u *userspace) start(c Config) (*netstate.TunnelLink, error) {
	if err := u.device.IpcSet(uapiDevice(c.PrivateKey, c.ListenPort)); err != nil {
		return nil, fmt.Errorf("configure: %w", err)
	}
	// This must happen here and not when the interface comes up, so that the socket is created in
	// this thread's namespace.
	if err := u.device.Up(); err != nil {
		return nil, portError(c.ListenPort, err)
	}
	link, err := netstate.OpenTunnelLink(c.Interface)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(link.SetMTU(c.MTU), link.Up()); err != nil {
		link.Close()
		return nil, err
	}
	return link, nil
}

func (u *userspace) kind() string { return "userspace" }

func (u *userspace) listenPort() (int, error) {
	state, err := u.state()
	return state.port, err
}

func (u *userspace) set(c change) error { return u.configure(c.uapi()) }

func (u *userspace) remove(key [32]byte) error { return u.configure(uapiRemove(key)) }

func (u *userspace) configure(uapi string) error {
	if u.gone() {
		return ErrGone
	}
	return u.device.IpcSet(uapi)
}

func (u *userspace) peers() ([]PeerState, error) {
	if u.gone() {
		return nil, ErrGone
	}
	state, err := u.state()
	return state.peers, err
}

func (u *userspace) state() (uapiState, error) {
	var b strings.Builder
	if err := u.device.IpcGetOperation(&b); err != nil {
		return uapiState{}, err
	}
	return parseUAPI(b.String())
}

// gone reports whether the device has closed itself because it could not read from TUN.
func (u *userspace) gone() bool {
	select {
	case <-u.device.Wait():
		return true
	default:
		return false
	}
}

func (u *userspace) mtuIs(mtu int) { u.tun.mtuIs(mtu) }

func (u *userspace) close() error {
	u.device.Close()
	<-u.device.Wait() // another call of Close may have come first
	u.voice.hush()
	return nil
}

// voice forwards the log of the embedded WireGuard at debug level, because it logs even a packet
// lost for lack of a network as an error.
type voice struct {
	log *slog.Logger

	mu     sync.RWMutex
	hushed bool
}

func (v *voice) say(format string, args ...any) {
	if !v.log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if !v.hushed {
		v.log.Debug("WireGuard", "says", fmt.Sprintf(format, args...))
	}
}

// hush stops the log. Workers end a little after their device is closed, when the log may be closed
// too.
func (v *voice) hush() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.hushed = true
}
