package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSocketIsTheOwnersAlone(t *testing.T) {
	socket, _ := serve(t, fake{})
	info, err := os.Stat(socket)
	if err != nil {
		t.Fatal(err)
	}
	if want := fs.ModeSocket | 0o600; info.Mode() != want {
		t.Errorf("mode %v, want %v", info.Mode(), want)
	}
}

func TestSocketLeftByACrashIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	leaveSocket(t, path)
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

func TestNothingButASocketIsReplaced(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "file")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(folder, "link")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, link, t.TempDir()} {
		if l, err := Listen(path); err == nil {
			l.Close()
			t.Errorf("a socket took the place of %s", path)
		} else if !strings.Contains(err.Error(), path) {
			t.Errorf("the error does not name the file: %v", err)
		}
	}
	if data, err := os.ReadFile(link); err != nil || string(data) != "mine" {
		t.Errorf("the file is now %q, %v", data, err)
	}
	if _, err := Listen(filepath.Join(file, "agent.sock")); err == nil || !strings.Contains(err.Error(), "run directory") {
		t.Errorf("a socket below a file: %v", err)
	}
}

// send sends a request that Client would not send.
func send(t *testing.T, socket, method, path string, body io.Reader) (code int, f Failure) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://agent"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	_ = json.Unmarshal(data, &f)
	return resp.StatusCode, f
}

func TestBadRequests(t *testing.T) {
	socket, _ := serve(t, fake{mapped: func(_ context.Context, r MapRequest) (MapAnswer, error) {
		t.Errorf("the agent was asked for %+v", r)
		return MapAnswer{}, nil
	}})
	huge := `{"server": "192.0.2.1:80", "waypoint": "` + strings.Repeat("b", 1<<20) + `"}`
	for _, test := range []struct {
		method, path, body string
		code               int
		says               string
	}{
		{"POST", "/v1/map", huge, 422, "read the request: http: request body too large"},
		{"POST", "/v1/map", "", 422, "read the request: EOF"},
		{"POST", "/v1/map", "\x00\xff", 422, "read the request: invalid character"},
		{"POST", "/v1/map", `{"server": "192.0.2.1:80"`, 422, "read the request: unexpected EOF"},
		{"POST", "/v1/map", `{"server": "example.org:80"}`, 422, "read the request: "},
		{"POST", "/v1/map", `{"server": 80}`, 422, "read the request: "},
		{"GET", "/v1/map", "", 405, ""},
		{"POST", "/v1/status", "", 405, ""},
		{"GET", "/v2/status", "", 404, ""},
	} {
		code, f := send(t, socket, test.method, test.path, strings.NewReader(test.body))
		if code != test.code || !strings.HasPrefix(f.Message, test.says) {
			t.Errorf("%s %s %.30q: %d %q, want %d %q", test.method, test.path, test.body, code, f.Message, test.code, test.says)
		}
	}
}

// Answers of other programs are errors.
func TestBadAnswers(t *testing.T) {
	for _, test := range []struct{ answer, want string }{
		{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "the running agent uses the schema  and"},
		{"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}x", "read the agent's answer: invalid character"},
		{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\x00\x01", "read the agent's answer: invalid character"},
		{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "read the agent's answer: json: cannot unmarshal"},
		{"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n", "the agent answered 500 Internal Server Error"},
		{"HTTP/1.1 422 Unprocessable Entity\r\nContent-Length: 2\r\n\r\n{}", "the agent answered 422"},
		{"SSH-2.0-OpenSSH_9.2\r\n", "read the agent's answer: malformed HTTP"},
	} {
		socket := filepath.Join(t.TempDir(), "agent.sock")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan struct{})
		go func() {
			defer close(served)
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			_, _ = conn.Read(make([]byte, 4096)) // the request
			_, _ = io.Copy(conn, bytes.NewReader([]byte(test.answer)))
		}()
		_, err = Dial(socket).Status(t.Context())
		l.Close()
		<-served
		if err == nil || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%.60q: %v, want %s", test.answer, err, test.want)
		}
	}
}
