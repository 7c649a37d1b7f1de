package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"

	"github.com/detour-collective/dcol/lab/browser"
	"github.com/detour-collective/dcol/lab/testbed"
)

// rowsShown is the condition that the page shows connections, for which it needs a session.
const rowsShown = "document.querySelectorAll('#connection-rows tr[data-key]').length > 0"

// openPage opens the page of a host's agent in a browser of this host. Both are on a loopback address; a forwarder in
// between has the same port, because the page refuses other names.
func (s *network) openPage(ctx context.Context, host string) (*pageView, error) {
	out, err := s.DCol(ctx, host, "web")
	if err != nil {
		return nil, err
	}
	link, err := url.Parse(strings.TrimSpace(string(out)))
	if err != nil {
		return nil, fmt.Errorf("the page's address: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", link.Host)
	if err != nil {
		return nil, fmt.Errorf("forward the page's port: %w", err)
	}
	go forwardTo(listener, func() (net.Conn, error) {
		return testbed.On(s.Host(host), func() (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "tcp", link.Host) })
	})
	b, err := browser.Start(ctx)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	p := &pageView{browser: b, address: link.Scheme + "://" + link.Host + "/", close: func() { b.Close(); listener.Close() }}
	if err := b.Open(link.String()); err != nil { // begins the session
		p.close()
		return nil, err
	}
	if err := errors.Join(b.Wait(rowsShown, startLimit), b.Call("Network.setCacheDisabled", map[string]any{"cacheDisabled": true}, nil)); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// forwardTo forwards connections until the listener is closed.
func forwardTo(l net.Listener, dial func() (net.Conn, error)) {
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer in.Close()
			out, err := dial()
			if err != nil {
				return // the browser sees that its connection ends
			}
			defer out.Close()
			go func() { _, _ = io.Copy(out, in); out.Close() }()
			_, _ = io.Copy(in, out)
		}()
	}
}
