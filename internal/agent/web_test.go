package agent

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/web"
)

// pageAgent is an agent whose log has one entry.
type pageAgent struct{ web.Agent }

func (pageAgent) Status(context.Context) (api.Status, error) { return api.Status{}, nil }

func (pageAgent) Log(context.Context, api.LogRequest) (api.Log, error) {
	return api.Log{Flows: []api.LogFlow{{Member: "erin"}}}, nil
}

// pageOnly answers requests for the page.
type pageOnly struct {
	api.Agent
	running *running
}

func (p pageOnly) Web(ctx context.Context, r api.WebRequest) (api.Web, error) {
	return p.running.Web(ctx, r)
}

// An operator's page has all but the attribution log, which is root's.
func TestOperatorsPage(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it becomes another user")
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("needs curl")
	}
	if group, err := user.LookupGroup("games"); err != nil || group.Gid != "60" {
		t.Skip("needs Debian's group games")
	}
	dir := t.TempDir()
	for _, open := range []string{dir, filepath.Dir(dir)} { // to other users
		if err := os.Chmod(open, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(dir, "agent.sock")
	l, err := api.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := api.AllowGroup(socket, "games"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	page := newPageKeeper(pageAgent{}, slog.New(slog.DiscardHandler))
	kept, served := make(chan struct{}), make(chan error, 1)
	go func() { defer close(kept); page.run(ctx) }()
	go func() { served <- api.Serve(ctx, l, pageOnly{running: &running{page: page}}) }()
	t.Cleanup(func() {
		cancel()
		<-kept
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	for name, who := range map[string]*syscall.Credential{"root": {}, "an operator": {Uid: 65534, Gid: 65534, Groups: []uint32{60}}} {
		cmd := exec.CommandContext(t.Context(), "curl", "-sS", "--unix-socket", socket, "-d", "{}", "http://agent/v1/web")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: who}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s asks for the page: %v: %s", name, err, out)
		}
		var at api.Web
		if err := json.Unmarshal(out, &at); err != nil || at.URL == "" {
			t.Fatalf("%s gets no page: %s", name, out)
		}
		answer := askPage(t, at.URL)
		if want := name == "root"; strings.Contains(answer, "erin") != want {
			t.Errorf("%s reads in the log: %s", name, answer)
		}
	}
}

// askPage opens the page and asks it for the log.
func askPage(t *testing.T, link string) string {
	t.Helper()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	browser := &http.Client{Transport: transport}
	origin, code, _ := strings.Cut(link, "/#code=")
	var session struct{ Token string }
	ask := func(what, body string) string {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, origin+"/api/"+what, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Origin", origin)
		req.Header.Set("Authorization", "Bearer "+session.Token)
		resp, err := browser.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(answer)
	}
	if err := json.Unmarshal([]byte(ask("session", `{"code": "`+code+`"}`)), &session); err != nil || session.Token == "" {
		t.Fatalf("the link begins no session: %v", err)
	}
	return ask("log", "{}")
}
