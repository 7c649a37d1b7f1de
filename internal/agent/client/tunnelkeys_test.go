package client

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// Agents that follow each other have the same keys, until the secret is removed or damaged.
func TestTunnelKeys(t *testing.T) {
	dir := t.TempDir()
	open := func() [32]byte { return openTunnelKeys(dir, slog.New(slog.DiscardHandler)).of("bob") }
	first := open()
	if open() != first {
		t.Error("the next agent has another key")
	}
	if openTunnelKeys(dir, slog.New(slog.DiscardHandler)).of("carol") == first {
		t.Error("tunnels to two waypoints have one key")
	}
	if info, err := os.Stat(tunnelSecretFile(dir)); err != nil || info.Mode() != 0o600 {
		t.Errorf("the secret: %v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(tunnelSecretFile(dir), []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	second := open()
	if second == first || open() != second {
		t.Error("a damaged secret is not replaced by one that stays")
	}
	for range 2 {
		if err := ForgetTunnelKeys(dir); err != nil {
			t.Fatal(err)
		}
	}
	if open() == second {
		t.Error("a secret that was removed is still there")
	}
	dir = filepath.Join(dir, "missing")
	if kept := open(); open() == kept {
		t.Error("a secret that cannot be kept is the same")
	}
}
