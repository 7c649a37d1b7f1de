package coordinator

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/enrol"
)

// FuzzStrangers sends a stranger's bytes: no member results from them, and each request is refused.
func FuzzStrangers(f *testing.F) {
	w := newWorld(f)
	h := w.host("laptop")
	for _, r := range []any{
		enrol.JoinRequest{Collective: testCollective, Request: string(h.request), Time: time.Now()},
		enrol.RenewRequest{Request: string(h.request), Time: time.Now()},
		map[string]any{"lans": []string{"10.0.0.0/8", "::/0"}, "secret": "AAAAAAAAAAAAAAAAAAAAAA"},
	} {
		text, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var join enrol.JoinRequest
		if json.Unmarshal(data, &join) == nil {
			join.Collective, join.Time = testCollective, time.Now()
			if _, err := w.c.registrar.Join(t.Context(), join); !isRefusal(err) {
				t.Fatalf("joined: %v", err)
			}
		}
		var renew enrol.RenewRequest
		if json.Unmarshal(data, &renew) == nil {
			if _, err := w.c.registrar.Renew(t.Context(), collective.PublicKey(h.key[32:]), nil, renew); !isRefusal(err) {
				t.Fatalf("renewed: %v", err)
			}
		}
		w.c.prober.Answered("stranger", data)
		if n := len(w.c.registrar.Members()); n != 1 {
			t.Fatalf("%d members", n)
		}
	})
}

func isRefusal(err error) bool {
	_, ok := errors.AsType[*enrol.Refusal](err)
	return ok
}
