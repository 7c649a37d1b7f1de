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

// ClientConfig is what a Client needs.
type ClientConfig struct {
	Interface  string // made by the client; whose it is gives it addresses and sets it up
	Remote     netip.AddrPort
	ServerName string // what the server's certificate must say
	Files      Files
	MTU        int    // of the interface, see MTU
	Dir        string // of this client alone: configuration, sockets
	Log        *slog.Logger
	// Changed is called when State has news, and must not block, nor call Stop. May be nil.
	Changed func()
}

// Client is the end of a tunnel that connects to a server, whatever happens.
type Client struct {
	config ClientConfig
	log    *slog.Logger
	base   *base
	daemon *daemon
	stop   context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	remote  netip.AddrPort
	run     int // of openvpn; what an earlier one still says is of the past
	tracker *tracker
}

// StartClient starts OpenVPN as a client. It returns when OpenVPN has begun to connect, and goes on
// trying until Stop, or until ctx ends. Errors are a *MissingError, *OldError or *TUNError where one
// fits.
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

// Stop ends OpenVPN and returns when nothing of the client is left.
func (c *Client) Stop() {
	c.stop()
	<-c.done
}

// State is what is known now.
func (c *Client) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tracker.state
}

// SetRemote says that the server has another address.
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

// launch runs one openvpn and waits until it begins to connect.
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
