package openvpn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"
)

// ClientConfig configures a Client.
type ClientConfig struct {
	Interface  string // created by the client; the caller sets its addresses and brings it up
	Remote     netip.AddrPort
	ServerName string // required in the server's certificate
	Files      Files
	MTU        int    // of the interface, see MTU
	Dir        string // for configuration and sockets; not shared
	Log        *slog.Logger
	// Changed is called when the State changes. It must not block or call Stop, and may be nil.
	Changed func()
}

// Client is the end of a tunnel that connects to a server, again after every failure.
type Client struct {
	config ClientConfig
	log    *slog.Logger
	base   *base
	daemon *daemon
	stop   context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	remote  netip.AddrPort
	run     int // number of the current openvpn run; notices of earlier ones are ignored
	tracker *tracker
}

// StartClient starts OpenVPN as a client. It returns when OpenVPN has begun to connect. OpenVPN
// keeps trying until Stop is called or ctx ends. Errors include *MissingError, *OldError and
// *TUNError.
func StartClient(ctx context.Context, c ClientConfig) (*Client, error) {
	client, err := startClient(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("start an OpenVPN client: %w", err)
	}
	return client, nil
}

func startClient(ctx context.Context, config ClientConfig) (*Client, error) {
	remote, err := checkRemote(config.Remote)
	if err != nil {
		return nil, err
	}
	if !memberName.MatchString(config.ServerName) {
		return nil, fmt.Errorf("%q cannot be the server's name", config.ServerName)
	}
	base, err := openBase(config.Interface, config.MTU, config.Dir, &config.Files)
	if err != nil {
		return nil, err
	}
	c := &Client{
		config: config, log: config.Log.With("interface", config.Interface), base: base, done: make(chan struct{}),
		remote: remote, tracker: newTracker(remote, time.Now()),
	}
	first, err := c.launch(ctx)
	if err != nil {
		return nil, errors.Join(err, base.close())
	}
	ctx, c.stop = context.WithCancel(ctx)
	c.daemon = newDaemon(c.launch, c.down, c.log)
	go func() {
		defer close(c.done)
		c.daemon.run(ctx, first)
		if err := base.close(); err != nil {
			c.log.Warn("cannot take the OpenVPN client down", "error", err)
		}
	}()
	return c, nil
}

// Stop ends OpenVPN and returns when the client has been removed completely.
func (c *Client) Stop() {
	c.stop()
	<-c.done
}

// State returns the current state.
func (c *Client) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tracker.state
}

// SetRemote changes the server's address.
func (c *Client) SetRemote(remote netip.AddrPort) error {
	remote, err := checkRemote(remote)
	if err != nil {
		return err
	}
	c.mu.Lock()
	if remote == c.remote {
		c.mu.Unlock()
		return nil
	}
	c.remote = remote
	c.run++
	c.tracker.moved(remote, time.Now())
	c.mu.Unlock()
	c.daemon.restart()
	c.tell()
	return nil
}

func checkRemote(remote netip.AddrPort) (netip.AddrPort, error) {
	addr := remote.Addr().Unmap()
	if !addr.IsValid() || addr.Zone() != "" || addr.IsUnspecified() || remote.Port() == 0 {
		return remote, fmt.Errorf("an OpenVPN server cannot be at %v: give an address and a UDP port", remote)
	}
	return netip.AddrPortFrom(addr, remote.Port()), nil
}

// launch starts openvpn and waits until it begins to connect.
func (c *Client) launch(ctx context.Context) (child, error) {
	c.mu.Lock()
	c.run++
	run, remote := c.run, c.remote
	c.mu.Unlock()
	config, err := render(clientDirectives(c.config, c.base.dir, remote))
	if err != nil {
		return nil, err
	}
	begun := make(chan struct{})
	var once sync.Once
	spec := c.base.spec(c.log)
	spec.notice = func(_ *process, n notice) {
		c.notice(run, n)
		if st, ok := parseState(n.text); n.kind == "STATE" && ok && st.name != "CONNECTING" {
			once.Do(func() { close(begun) })
		}
	}
	p, err := spec.start(ctx, config)
	if err != nil {
		return nil, err
	}
	if err := p.await(ctx, begun); err != nil {
		return nil, err
	}
	return p, nil
}

func (c *Client) notice(run int, n notice) {
	c.mu.Lock()
	news := run == c.run && c.tracker.notice(n, time.Now())
	c.mu.Unlock()
	if news {
		c.tell()
	}
}

func (c *Client) down(err error, retry time.Duration) {
	c.mu.Lock()
	c.tracker.down(err, retry, time.Now())
	c.mu.Unlock()
	c.tell()
}

func (c *Client) tell() {
	if c.config.Changed != nil {
		c.config.Changed()
	}
}
