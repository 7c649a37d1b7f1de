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

// Client asks one path server.
type Client struct {
	Identity *collective.Identity
	Name     string // of the member that answers
	Addr     string // host and port
}

// Place returns ports that lead along several paths; see PlaceRequest.
func (c *Client) Place(ctx context.Context, q PlaceRequest) (a PlaceAnswer, err error) {
	err = c.ask(ctx, placePath, q, &a)
	return a, err
}

// Flow returns the path of a connection.
func (c *Client) Flow(ctx context.Context, source, destination netip.AddrPort) (a FlowAnswer, err error) {
	err = c.ask(ctx, flowPath, FlowRequest{source, destination}, &a)
	return a, err
}

func (c *Client) ask(ctx context.Context, path string, q, a any) error {
	body, err := json.Marshal(q)
	if err == nil {
		err = c.post(ctx, path, body, a)
	}
	if err != nil {
		return fmt.Errorf("ask the path server %s: %w", c.Name, err)
	}
	return nil
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
