package bus

import (
	"crypto/ed25519"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/jwt/v2"

	"github.com/detour-collective/dcol/internal/collective"
)

func key(t *testing.T) ed25519.PublicKey {
	t.Helper()
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return public
}

func revoked(t *testing.T, a *Authority) map[string]int64 {
	t.Helper()
	text, err := a.AccountJWT()
	if err != nil {
		t.Fatal(err)
	}
	claims, err := jwt.DecodeAccountClaims(text)
	if err != nil {
		t.Fatal(err)
	}
	return claims.Revocations
}

func TestAuthorityFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bus")
	if _, err := OpenAuthority(dir); err == nil || !strings.Contains(err.Error(), "dcol init") {
		t.Fatalf("nothing there: %v", err)
	}
	a, err := InitAuthority(dir, "test")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, authorityFile)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info.Mode(), err)
	}
	if _, err := InitAuthority(dir, "test"); !errors.Is(err, collective.ErrExists) {
		t.Fatalf("made twice: %v", err)
	}
	again, err := OpenAuthority(dir)
	if err != nil || publicKey(again.account) != publicKey(a.account) || publicKey(again.operator) != publicKey(a.operator) {
		t.Fatalf("opened another one: %v", err)
	}

	good, _ := os.ReadFile(path)
	for name, bad := range map[string]string{
		"empty":         "",
		"half":          string(good[:len(good)/2]),
		"another key":   strings.Replace(string(good), a.state.Account, a.state.Operator, 1),
		"a broken key":  strings.Replace(string(good), a.state.Account, a.state.Account[:20], 1),
		"unknown field": strings.Replace(string(good), "{", `{"x": 1,`, 1),
	} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		var fault *collective.Error
		if _, err := OpenAuthority(dir); !errors.As(err, &fault) || fault.File != path || fault.Fix == "" {
			t.Errorf("%s: %v", name, err)
		}
	}

	// A directory that was restored from another collective's backup must be noticed.
	other, err := InitAuthority(t.TempDir(), "other")
	if err != nil {
		t.Fatal(err)
	}
	copyFile(t, filepath.Join(other.dir, authorityFile), path)
	if _, err := a.Revoke(key(t)); err == nil || !strings.Contains(err.Error(), "other keys") {
		t.Errorf("revoked with another's keys: %v", err)
	}
}

// TestRevocationsOfManyProcesses: no revocation may be lost, and outdated ones are dropped.
func TestRevocationsOfManyProcesses(t *testing.T) {
	dir := t.TempDir()
	first, err := InitAuthority(dir, "test")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 4 {
		a, err := OpenAuthority(dir)
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			k := key(t)
			all.Go(func() {
				if _, err := a.Revoke(k); err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	if _, err := first.Revoke(key(t)); err != nil {
		t.Fatal(err)
	}
	if n := len(revoked(t, first)); n != 21 {
		t.Errorf("%d of 21 revocations are there", n)
	}
}

func TestRevocationsEnd(t *testing.T) {
	dir := t.TempDir()
	a, err := InitAuthority(dir, "test")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		old, recent := key(t), key(t)
		if _, err := a.Revoke(old); err != nil {
			t.Fatal(err)
		}
		time.Sleep(maxUserLife)
		if _, err := a.Revoke(recent); err != nil {
			t.Fatal(err)
		}
		if n := len(revoked(t, a)); n != 2 {
			t.Fatalf("%d revocations: the first JWTs may still count", n)
		}
		time.Sleep(2 * time.Hour)
		if _, err := a.Revoke(recent); err != nil {
			t.Fatal(err)
		}
		if n := len(revoked(t, a)); n != 1 {
			t.Errorf("%d revocations: what has ended by itself is kept", n)
		}

		// A member that is admitted again in the same second gets a valid JWT.
		text, err := a.MemberJWT("alice", recent, time.Now().Add(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		user, err := jwt.DecodeUserClaims(text)
		if err != nil {
			t.Fatal(err)
		}
		if at := revoked(t, a)[user.Subject]; user.IssuedAt <= at {
			t.Errorf("issued at %d, revoked until %d", user.IssuedAt, at)
		}

		// A manually issued certificate may be valid for longer than a JWT may.
		text, err = a.MemberJWT("alice", old, time.Now().Add(10*maxUserLife))
		if err != nil {
			t.Fatal(err)
		}
		if user, err = jwt.DecodeUserClaims(text); err != nil || user.Expires > time.Now().Add(maxUserLife).Unix() {
			t.Errorf("expires %v, %v", time.Unix(user.Expires, 0), err)
		}
	})
}

func TestServerConfigFaults(t *testing.T) {
	a, err := InitAuthority(t.TempDir(), "test")
	if err != nil {
		t.Fatal(err)
	}
	good := External{Name: "n1", Listen: "127.0.0.1:4222", Dir: "/d", Certificate: "/c", Key: "/k", CA: "/ca"}
	if _, err := a.ServerConfig(good); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "a\"\ninclude \"/etc/passwd", "a\\b"} {
		e := good
		e.Dir = bad
		if _, err := a.ServerConfig(e); err == nil {
			t.Errorf("wrote %q", bad)
		}
	}
}
