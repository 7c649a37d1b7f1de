package session

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/detour-collective/dcol/internal/collective"
)

// A stream beside the messages carries bytes in both directions. The server knows the member by its certificate.
func TestAside(t *testing.T) {
	a := newAuthority(t)
	ended := make(chan error, 1)
	w := startServer(t, served{Identity: a.identity("bob"), Asides: true, Handler: &granter{aside: func(ctx context.Context, p Peer, s Stream) {
		text, err := io.ReadAll(s)
		if err != nil {
			t.Errorf("read: %v", err)
		}
		if string(text) == "stay" {
			if _, err := s.Write([]byte("!")); err != nil {
				t.Errorf("write: %v", err)
			}
			<-ctx.Done()
			ended <- ctx.Err()
			return
		}
		if _, err := s.Write([]byte(p.Name + " wrote " + string(text))); err != nil {
			t.Errorf("write: %v", err)
		}
	}}})
	alice := a.identity("alice")
	s := openAside(t, alice, w)
	if answer := exchange(t, s, "hello"); answer != "alice wrote hello" {
		t.Errorf("answered %q", answer)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	// Serving a stream ends when the client disconnects.
	s = openAside(t, alice, w)
	if _, err := s.Write([]byte("stay")); err != nil {
		t.Fatal(err)
	}
	if err := s.CloseWrite(); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(s, make([]byte, 1)); err != nil { // serving has begun
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("the work did not end with the session")
	}
}

func openAside(t *testing.T, alice *collective.Identity, w *waypoint) *Aside {
	t.Helper()
	s, err := OpenAside(t.Context(), alice, "bob", w.at)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func exchange(t *testing.T, s *Aside, text string) string {
	t.Helper()
	if _, err := s.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := s.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(answer)
}

func TestNoAsides(t *testing.T) {
	a := newAuthority(t)
	w := startServer(t, served{Identity: a.identity("bob")})
	if _, err := OpenAside(t.Context(), a.identity("alice"), "bob", w.at); !errors.Is(err, ErrNoAsides) {
		t.Errorf("error %v", err)
	}
}
