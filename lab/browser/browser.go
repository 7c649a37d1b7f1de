// Package browser controls Debian's Chromium without a window, by the DevTools protocol: for tests, measurements and
// pictures of pages.
package browser

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"time"

	"golang.org/x/net/websocket"
)

// ErrMissing is returned by Start if Chromium is not installed.
var ErrMissing = errors.New("needs Debian's package chromium")

// Browser is a Chromium with one page. It may be used by one goroutine at a time.
type Browser struct {
	conn    *websocket.Conn
	session string
	id      int
	stop    func()
}

var devTools = regexp.MustCompile(`DevTools listening on (ws://\S+)`)

// startLimit is generous, because machines that test are busy.
const startLimit = 2 * time.Minute

// Start starts Chromium with an empty profile. before is the beginning of its command line, as to enter a network
// namespace; the DevTools protocol must be within reach from this process.
func Start(ctx context.Context, before ...string) (*Browser, error) {
	program, err := exec.LookPath("chromium")
	if err != nil {
		return nil, ErrMissing
	}
	profile, err := os.MkdirTemp("", "dcol-chromium-")
	if err != nil {
		return nil, err
	}
	argv := slices.Concat(before, []string{program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0",
		"--remote-allow-origins=http://localhost", "--disable-background-networking", "--no-first-run", "--hide-scrollbars", "--user-data-dir=" + profile, "about:blank"})
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	out, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start chromium: %w", err), os.RemoveAll(profile))
	}
	read := make(chan struct{})
	stop := func() { _ = cmd.Process.Kill(); <-read; _ = cmd.Wait(); _ = os.RemoveAll(profile) }
	found := make(chan string, 1)
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if m := devTools.FindStringSubmatch(lines.Text()); m != nil {
				found <- m[1]
			}
		}
	}()
	select {
	case at := <-found:
		b := &Browser{stop: stop}
		if err := b.attach(at); err != nil {
			stop()
			return nil, err
		}
		return b, nil
	case <-read:
		stop()
		return nil, errors.New("chromium ended at its start")
	case <-time.After(startLimit):
		stop()
		return nil, fmt.Errorf("chromium did not listen within %v", startLimit)
	}
}

// attach connects to a new page.
func (b *Browser) attach(at string) (err error) {
	if b.conn, err = websocket.Dial(at, "", "http://localhost"); err != nil {
		return fmt.Errorf("connect to chromium: %w", err)
	}
	b.conn.MaxPayloadBytes = 64 << 20
	var target struct{ TargetID string }
	if err := b.Call("Target.createTarget", map[string]any{"url": "about:blank"}, &target); err != nil {
		return err
	}
	var session struct{ SessionID string }
	if err := b.Call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session); err != nil {
		return err
	}
	b.session = session.SessionID
	return b.Call("Page.enable", nil, nil)
}

// Close ends Chromium and removes its profile.
func (b *Browser) Close() {
	_ = b.conn.Close() // the process is killed in any case
	b.stop()
}

// Call sends a command of the DevTools protocol, and decodes its result into a pointer; nil: the result does not matter.
func (b *Browser) Call(method string, params map[string]any, into any) error {
	b.id++
	request := map[string]any{"id": b.id, "method": method, "params": params}
	if params == nil {
		request["params"] = map[string]any{}
	}
	if b.session != "" {
		request["sessionId"] = b.session
	}
	if err := websocket.JSON.Send(b.conn, request); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	for {
		var answer struct {
			ID     int
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		if err := websocket.JSON.Receive(b.conn, &answer); err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
		switch {
		case answer.ID != b.id: // an event
		case answer.Error != nil:
			return fmt.Errorf("%s: %s", method, answer.Error.Message)
		case into == nil:
			return nil
		default:
			return json.Unmarshal(answer.Result, into)
		}
	}
}

// Open leads the page to an address.
func (b *Browser) Open(address string) error {
	return b.Call("Page.navigate", map[string]any{"url": address}, nil)
}

// Eval runs JavaScript in the page, and decodes its value into a pointer.
func (b *Browser) Eval(script string, into any) error {
	var out struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct{ Exception struct{ Description string } }
	}
	if err := b.Call("Runtime.evaluate", map[string]any{"expression": script, "returnByValue": true, "awaitPromise": true}, &out); err != nil {
		return err
	}
	if out.ExceptionDetails != nil {
		return fmt.Errorf("%s: %s", script, out.ExceptionDetails.Exception.Description)
	}
	if err := json.Unmarshal(out.Result.Value, into); err != nil {
		return fmt.Errorf("%s: %w", script, err)
	}
	return nil
}

// Wait waits until a condition in JavaScript holds, and returns an error after the limit.
func (b *Browser) Wait(condition string, limit time.Duration) error {
	for end := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		var is bool
		if err := b.Eval("Boolean("+condition+")", &is); err != nil || is {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("not within %v: %s", limit, condition)
		}
	}
}

// Look sets the size of the screen in pixels, and the preferred colours: "light" or "dark".
func (b *Browser) Look(width, height int, scheme string) error {
	return errors.Join(
		b.Call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}, nil),
		b.Call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil),
	)
}

// Screenshot returns a picture of the page, as PNG; all of it, or what the screen shows.
func (b *Browser) Screenshot(all bool) ([]byte, error) {
	var shot struct{ Data string }
	if err := b.Call("Page.captureScreenshot", map[string]any{"captureBeyondViewport": all}, &shot); err != nil {
		return nil, err
	}
	return base64.StdEncoding.DecodeString(shot.Data)
}
