package pathserver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"

	"github.com/detour-collective/dcol/internal/collective"
)

// Client sends requests to one path server.
type Client struct {
	Identity *collective.Identity
	Name     string // name of the member that runs the server
	Addr     string // its host and port
}

// Place sends a PlaceRequest. An answer with more paths or ports than requested is an error.
func (c *Client) Place(ctx context.Context, q PlaceRequest) (a PlaceAnswer, err error) {
	if err = c.ask(ctx, placePath, q, &a); err == nil {
		err = a.check(q)
	}
	if err != nil {
		return PlaceAnswer{}, fmt.Errorf("ask the path server %s: %w", c.Name, err)
	}
	return a, nil
}

// check returns an error if the answer does not fit the request, because an agent opens a subflow on each path.
func (a *PlaceAnswer) check(q PlaceRequest) error {
	if len(a.Paths) > q.Paths {
		return fmt.Errorf("it answers with %d paths, but %d were wanted", len(a.Paths), q.Paths)
	}
	seen := map[uint16]bool{0: true}
	for i, p := range a.Paths {
		if len(p.Ports) < 1 || len(p.Ports) > q.Each {
			return fmt.Errorf("it answers with %d ports on path %d, but 1 to %d were wanted", len(p.Ports), i+1, q.Each)
		}
		for _, port := range p.Ports {
			if seen[port] {
				return fmt.Errorf("it answers with the port %d, which no path can have or two paths have", port)
			}
			seen[port] = true
		}
	}
	return nil
}

// Flow returns the path of a connection.
func (c *Client) Flow(ctx context.Context, source, destination netip.AddrPort) (a FlowAnswer, err error) {
	if err = c.ask(ctx, flowPath, FlowRequest{source, destination}, &a); err != nil {
		return FlowAnswer{}, fmt.Errorf("ask the path server %s: %w", c.Name, err)
	}
	return a, nil
}

// Moved sends a MovedRequest: it waits until the server has moved flows of this member, and returns their destinations.
func (c *Client) Moved(ctx context.Context) ([]netip.AddrPort, error) {
	limited, cancel := context.WithTimeout(ctx, movedTime+requestTime)
	defer cancel()
	var a MovedAnswer
	if err := c.ask(limited, movedPath, MovedRequest{}, &a); err != nil {
		return nil, fmt.Errorf("wait for moves by the path server %s: %w", c.Name, err)
	}
	return a.Destinations, nil
}

func (c *Client) ask(ctx context.Context, path string, q, a any) error {
	body, err := json.Marshal(q)
	if err != nil {
		return err
	}
	return c.post(ctx, path, body, a)
}

func (c *Client) post(ctx context.Context, path string, body []byte, a any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+c.Addr+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{TLSClientConfig: c.Identity.ClientTLS(alpn, c.Name), DisableKeepAlives: true}
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	switch {
	case err != nil:
		return err
	case len(text) > maxAnswer:
		return fmt.Errorf("its answer has more than %d bytes", maxAnswer)
	case answer.StatusCode != http.StatusOK:
		var p problem
		if json.Unmarshal(text, &p) != nil || p.Error == "" {
			p.Error = answer.Status
		}
		return fmt.Errorf("it refuses: %.300q", p.Error)
	}
	return json.Unmarshal(text, a)
}
