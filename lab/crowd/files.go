package crowd

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/detour-collective/dcol/internal/collective"
)

// filesIn returns the paths of an identity in a separate directory.
func filesIn(dir string) collective.Files {
	return collective.Files{
		Certificate: filepath.Join(dir, "host.crt"), Key: filepath.Join(dir, "host.key"),
		CA: filepath.Join(dir, "ca.crt"), CRL: filepath.Join(dir, "ca.crl"),
	}
}

// newMember makes a key, and the request that goes with it.
func newMember(f collective.Files, name string) ([]byte, error) {
	if err := os.MkdirAll(filepath.Dir(f.Key), 0o700); err != nil {
		return nil, fmt.Errorf("make a member's files: %w", err)
	}
	key, err := collective.NewKey(f.Key)
	if err != nil {
		return nil, err
	}
	return collective.NewRequest(key, name)
}

// install writes what an authority gave, as far as it is given, and reads the identity.
func install(f collective.Files, chain, roots, lists []byte) (*collective.Identity, error) {
	for path, data := range map[string][]byte{f.Certificate: chain, f.CA: roots, f.CRL: lists} {
		if data == nil {
			continue
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return nil, fmt.Errorf("install a member's files: %w", err)
		}
	}
	return collective.Load(f, slog.New(slog.DiscardHandler))
}

// copyTrust writes roots and lists where many can read them.
func copyTrust(t *collective.Trust, f collective.Files) error {
	if err := os.MkdirAll(filepath.Dir(f.CA), 0o700); err != nil {
		return fmt.Errorf("make the shared files: %w", err)
	}
	for path, data := range map[string][]byte{f.CA: t.Roots(), f.CRL: t.Lists()} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return fmt.Errorf("make the shared files: %w", err)
		}
	}
	return nil
}
