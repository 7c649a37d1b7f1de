package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"syscall"
)

// ErrNoAgent means that no agent listens at the socket.
var ErrNoAgent = errors.New("no agent is running")

// Client sends requests to the agent at a socket. Its methods return ErrNoAgent if no agent runs, and
// fs.ErrPermission if this user may not open the socket; then an agent may run.
type Client struct {
	socket string
	http   http.Client
}

// Dial returns a Client. It connects with the first request.
func Dial(socket string) *Client {
	return &Client{socket: socket, http: http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}}
}

// Status requests the agent's status.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	err := c.ask(ctx, http.MethodGet, "/v1/status", nil, &s)
	if err == nil {
		err = sameSchema(s.Schema, StatusSchema)
	}
	return s, err
}

func sameSchema(agent, ours string) error {
	if agent != ours {
		return fmt.Errorf("the running agent uses the schema %s and this program %s: restart the agent", agent, ours)
	}
	return nil
}

// Map requests a mapping.
func (c *Client) Map(ctx context.Context, r MapRequest) (MapAnswer, error) {
	var a MapAnswer
	err := c.ask(ctx, http.MethodPost, "/v1/map", r, &a)
	return a, err
}

// SwitchWaypoint opens or closes this member's waypoint, and returns its new state.
func (c *Client) SwitchWaypoint(ctx context.Context, r SwitchRequest) (Given, error) {
	var g Given
	err := c.ask(ctx, http.MethodPost, "/v1/waypoint", r, &g)
	return g, err
}

// Convert changes for which servers converters are used, and returns the new state.
func (c *Client) Convert(ctx context.Context, r ConvertRequest) (Converting, error) {
	var a Converting
	err := c.ask(ctx, http.MethodPost, "/v1/convert", r, &a)
	return a, err
}

// Steer changes which waypoints are taken, and returns the new state.
func (c *Client) Steer(ctx context.Context, r SteerRequest) (Steering, error) {
	var s Steering
	err := c.ask(ctx, http.MethodPost, "/v1/steer", r, &s)
	return s, err
}

// Why requests an explanation of what is done about a server.
func (c *Client) Why(ctx context.Context, r WhyRequest) (Why, error) {
	var w Why
	err := c.ask(ctx, http.MethodPost, "/v1/why", r, &w)
	if err == nil {
		err = sameSchema(w.Schema, WhySchema)
	}
	return w, err
}

// Spare has a connection that is about to be made get no detours.
func (c *Client) Spare(ctx context.Context, r SpareRequest) error {
	return c.ask(ctx, http.MethodPost, "/v1/spare", r, &Spared{})
}

// LogLevel changes which messages the agent logs, and returns the new state.
func (c *Client) LogLevel(ctx context.Context, r LogLevelRequest) (LogLevels, error) {
	var l LogLevels
	err := c.ask(ctx, http.MethodPost, "/v1/log-level", r, &l)
	return l, err
}

// History requests what paths carried, and what detours gained.
func (c *Client) History(ctx context.Context, r HistoryRequest) (History, error) {
	var h History
	err := c.ask(ctx, http.MethodPost, "/v1/history", r, &h)
	if err == nil {
		err = sameSchema(h.Schema, HistorySchema)
	}
	return h, err
}

// Web has the agent serve its page, and returns its address.
func (c *Client) Web(ctx context.Context, r WebRequest) (Web, error) {
	var w Web
	err := c.ask(ctx, http.MethodPost, "/v1/web", r, &w)
	return w, err
}

// Reload has the agent read its configuration again, and returns what that changes.
func (c *Client) Reload(ctx context.Context, r ReloadRequest) (Reloaded, error) {
	var a Reloaded
	err := c.ask(ctx, http.MethodPost, "/v1/reload", r, &a)
	return a, err
}

func (c *Client) ask(ctx context.Context, method, path string, body, into any) error {
	var reader io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("encode the request: %w", err)
		}
		reader = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, reader)
	if err != nil {
		return fmt.Errorf("ask the agent: %w", err)
	}
	resp, err := c.http.Do(req)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w at %s", ErrNoAgent, c.socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("only root may use the agent's socket %s: run this as root, or as a member of the group that operators names in the configuration (%w)", c.socket, fs.ErrPermission)
	case err != nil:
		return fmt.Errorf("ask the agent: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		var f Failure
		if err := json.NewDecoder(resp.Body).Decode(&f); err != nil || f.Message == "" {
			return fmt.Errorf("the agent answered %s", resp.Status)
		}
		return errors.New(f.Message)
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	return nil
}
