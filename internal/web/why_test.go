package web

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// The page explains one connection, or all to an address or a name.
func TestWhy(t *testing.T) {
	s := serve(t, &fake{connections: 3})
	b := loggedIn(t, s, Reader{})
	for body, want := range map[string]struct {
		server       string
		live, closed int
	}{
		`{"destination": "203.0.113.5:443", "token": "1"}`:     {"203.0.113.5:443", 1, 0},
		`{"destination": "203.0.113.5:443", "token": "ended"}`: {"203.0.113.5:443", 3, 1},
		`{"destination": "203.0.113.5:443"}`:                   {"203.0.113.5:443", 3, 1},
		`{"destination": "2001:db8::5"}`:                       {"[2001:db8::5]:0", 3, 1}, // the agent chooses the port
	} {
		code, text := do(t, b, http.MethodPost, s.url("/api/why"), body, map[string]string{"Origin": s.url("")})
		var list []explanation
		if err := json.Unmarshal([]byte(text), &list); code != http.StatusOK || err != nil || len(list) != 1 {
			t.Errorf("%s: %d %s", body, code, text)
			continue
		}
		w := list[0]
		if w.Server.String() != want.server || len(w.Connections) != want.live || len(w.Closed) != want.closed {
			t.Errorf("%s: %d live and %d ended connections to %v", body, len(w.Connections), len(w.Closed), w.Server)
		}
		if len(w.Bottlenecks) != 1 || len(w.Claims) != 1 {
			t.Errorf("%s: %q, %q", body, w.Bottlenecks, w.Claims)
		}
	}
	if _, text := do(t, b, http.MethodPost, s.url("/api/why"), `{"destination": "localhost:443"}`, map[string]string{"Origin": s.url("")}); !strings.Contains(text, `1:443"`) { // 127.0.0.1, [::1], or both
		t.Errorf("localhost: %s", text)
	}
	for destination, says := range map[string]string{"": "is no address", "203.0.113.5:0": "is not a port", "no-such-name.invalid": "no name that can be resolved"} {
		code, text := do(t, b, http.MethodPost, s.url("/api/why"), `{"destination": "`+destination+`"}`, map[string]string{"Origin": s.url("")})
		if code != http.StatusUnprocessableEntity || !strings.Contains(text, says) {
			t.Errorf("%q: %d %s", destination, code, text)
		}
	}
}
