package api

import (
	"bufio"
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
	"time"
)

// ErrNoAgent means that no agent listens at the socket.
var ErrNoAgent = errors.New("no agent is running")

// errNoAnswer means that the agent accepted the connection and then closed it without an answer. It may have carried out
// the request.
var errNoAnswer = errors.New("the agent ended before it answered")

// The kernel may close the connections of an agent that was killed before it closes the agent's socket. A request that may
// be repeated is sent again after repeatFirst, doubled each time up to repeatMost, until there is an answer or no agent.
const (
	repeatFirst = 10 * time.Millisecond
	repeatMost  = 640 * time.Millisecond
)

// Client sends requests to the agent at a socket. Its methods return ErrNoAgent if no agent runs, and
// fs.ErrPermission if this user may not open the socket; then an agent may run.
type Client struct {
	socket string
	around func(request func())
}

// Dial returns a Client. It connects with the first request.
func Dial(socket string) *Client {
	return &Client{socket: socket, around: func(request func()) { request() }}
}

// Around makes around carry out each request, which it must call once. So a program can tell its user that an answer takes
// long. It returns c.
func (c *Client) Around(around func(request func())) *Client {
	c.around = around
	return c
}

// Status requests the agent's status.
func (c *Client) Status(ctx context.Context) (Status, error) {
	s, err := get[Status](ctx, c, "/v1/status")
	return s, checkSchema(err, s.Schema, StatusSchema)
}

// Map requests a mapping.
func (c *Client) Map(ctx context.Context, r MapRequest) (MapAnswer, error) {
	return post[MapAnswer](ctx, c, "/v1/map", r)
}

// SwitchWaypoint opens or closes this member's waypoint, and returns its new state.
func (c *Client) SwitchWaypoint(ctx context.Context, r SwitchRequest) (Given, error) {
	return post[Given](ctx, c, "/v1/waypoint", r)
}

// Convert changes for which servers converters are used, and returns the new state.
func (c *Client) Convert(ctx context.Context, r ConvertRequest) (Converting, error) {
	return post[Converting](ctx, c, "/v1/convert", r)
}

// Steer changes which waypoints are used, and returns the new state.
func (c *Client) Steer(ctx context.Context, r SteerRequest) (Steering, error) {
	return post[Steering](ctx, c, "/v1/steer", r)
}

// Why requests an explanation of the paths to a server.
func (c *Client) Why(ctx context.Context, r WhyRequest) (Why, error) {
	w, err := post[Why](ctx, c, "/v1/why", r)
	return w, checkSchema(err, w.Schema, WhySchema)
}

// Spare keeps detours away from a connection that is about to be made.
func (c *Client) Spare(ctx context.Context, r SpareRequest) error {
	_, err := post[Spared](ctx, c, "/v1/spare", r)
	return err
}

// LogLevel changes which messages the agent logs, and returns the new state.
func (c *Client) LogLevel(ctx context.Context, r LogLevelRequest) (LogLevels, error) {
	return post[LogLevels](ctx, c, "/v1/log-level", r)
}

// History requests what paths carried, and what detours gained.
func (c *Client) History(ctx context.Context, r HistoryRequest) (History, error) {
	h, err := post[History](ctx, c, "/v1/history", r)
	return h, checkSchema(err, h.Schema, HistorySchema)
}

// Web makes the agent serve its page, and returns the page's address.
func (c *Client) Web(ctx context.Context, r WebRequest) (Web, error) {
	return post[Web](ctx, c, "/v1/web", r)
}

// Reload makes the agent read its configuration again, and returns what that changes.
func (c *Client) Reload(ctx context.Context, r ReloadRequest) (Reloaded, error) {
	return post[Reloaded](ctx, c, "/v1/reload", r)
}

// get requests the answer of type T at a path.
func get[T any](ctx context.Context, c *Client, path string) (T, error) {
	var answer T
	err := c.ask(ctx, http.MethodGet, path, nil, &answer)
	return answer, err
}

// post sends a request to a path, and returns the answer of type T. The request may be sent several times.
func post[T any](ctx context.Context, c *Client, path string, request any) (T, error) {
	var answer T
	err := c.ask(ctx, http.MethodPost, path, request, &answer)
	return answer, err
}

// postOnce is like post for a request that must not be repeated. check says how a user finds out whether the agent carried
// it out.
func postOnce[T any](ctx context.Context, c *Client, path string, request any, check string) (T, error) {
	var answer T
	var err error
	c.around(func() { err = c.exchange(ctx, http.MethodPost, path, request, &answer) })
	if errors.Is(err, errNoAnswer) {
		err = fmt.Errorf("%w, and may have done what you asked for: once it runs again, %s", err, check)
	}
	return answer, err
}

// checkSchema returns err if the request failed, or an error if the agent's answer has another schema than this
// program's.
func checkSchema(err error, agent, ours string) error {
	if err == nil && agent != ours {
		return fmt.Errorf("the running agent uses the schema %s and this program %s: restart the agent", agent, ours)
	}
	return err
}

func (c *Client) ask(ctx context.Context, method, path string, body, into any) (err error) {
	c.around(func() {
		err = c.exchange(ctx, method, path, body, into)
		for pause := repeatFirst; errors.Is(err, errNoAnswer) && pause <= repeatMost && wait(ctx, pause); pause *= 2 {
			err = c.exchange(ctx, method, path, body, into)
		}
	})
	if errors.Is(err, errNoAnswer) {
		err = fmt.Errorf("%w: repeat the command; if that does not help, see the agent's log", err)
	}
	return err
}

// wait reports whether ctx lasts for d.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// exchange sends a request once, over a connection of its own.
func (c *Client) exchange(ctx context.Context, method, path string, body, into any) error {
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
	req.Close = true
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.socket)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w at %s", ErrNoAgent, c.socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("only root may use the agent's socket %s: run this as root, or as a member of the group that operators names in the configuration (%w)", c.socket, fs.ErrPermission)
	case err != nil:
		return fmt.Errorf("ask the agent: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	err = talk(conn, req, into)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("ask the agent: %w", context.Cause(ctx))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("%w (%w)", errNoAnswer, err)
	}
	return err
}

// talk sends a request over a connection, and reads the answer.
func talk(conn net.Conn, req *http.Request, into any) error {
	if err := req.Write(conn); err != nil {
		return fmt.Errorf("ask the agent: %w", err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		var f Failure
		if err := json.Unmarshal(answer, &f); err != nil || f.Message == "" {
			return fmt.Errorf("the agent answered %s", resp.Status)
		}
		return errors.New(f.Message)
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	return nil
}
