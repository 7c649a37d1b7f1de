package client

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/detour-collective/dcol/internal/durable"
)

// tunnelKeys derives the keys of this host's ends of WireGuard tunnels from a secret. The next agent of this host derives the same
// keys. So waypoints assign it the same addresses, and connections in tunnels continue. The secret is in the run directory, which
// a restart of the host empties, as it ends the connections.
type tunnelKeys struct{ secret [32]byte }

// tunnelSecretFile is the file that has the secret.
func tunnelSecretFile(runDir string) string { return filepath.Join(runDir, "tunnel-secret") }

// openTunnelKeys reads the secret of an earlier agent, or makes one.
func openTunnelKeys(runDir string, log *slog.Logger) (k tunnelKeys) {
	file := tunnelSecretFile(runDir)
	before, err := os.ReadFile(file)
	if err == nil && len(before) == len(k.secret) {
		k.secret = [32]byte(before)
		return k
	}
	_, _ = rand.Read(k.secret[:]) // never fails
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = durable.Replace(file, k.secret[:], 0o600)
	}
	if err != nil {
		log.Warn("connections to converters in tunnels may end when the agent is restarted", "err", err)
	}
	return k
}

// of returns the private key of the tunnel to a waypoint.
func (k tunnelKeys) of(waypoint string) [32]byte {
	h := hmac.New(sha256.New, k.secret[:])
	h.Write([]byte("WireGuard tunnel to " + waypoint))
	return [32]byte(h.Sum(nil))
}

// ForgetTunnelKeys removes the secret. The next agent's tunnels then have other addresses.
func ForgetTunnelKeys(runDir string) error {
	if err := os.Remove(tunnelSecretFile(runDir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the secret of tunnels' keys: %w", err)
	}
	return nil
}
