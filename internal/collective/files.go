package collective

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/detour-collective/dcol/internal/durable"
)

const (
	pemCertificate = "CERTIFICATE"
	pemKey         = "PRIVATE KEY"
	pemCRL         = "X509 CRL"
	pemRequest     = "CERTIFICATE REQUEST"

	// maxFile exceeds all of our files. It keeps a wrong path (a disk image, /dev/zero) from filling memory.
	maxFile = 4 << 20
)

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("larger than %d bytes", maxFile)
	}
	return data, nil
}

// readNamed reads a file that must exist.
func readNamed(path, fix string) ([]byte, error) {
	data, err := readFile(path)
	if err != nil {
		problem := "cannot be read"
		switch {
		case errors.Is(err, fs.ErrNotExist):
			problem = "is missing"
		case errors.Is(err, fs.ErrPermission):
			fix = "let this user read it; if it is for the agent that systemd starts: systemctl reload-or-restart dcol"
		}
		return nil, &Error{File: path, Problem: problem, Fix: fix, Err: err}
	}
	return data, nil
}

// pemBlocks returns all blocks. A damaged or truncated block is an error: ignoring it, as package pem does,
// could lose a revocation list.
func pemBlocks(data []byte) ([]*pem.Block, error) {
	var out []*pem.Block
	rest := data
	for {
		block, after := pem.Decode(rest)
		if block == nil {
			break
		}
		out, rest = append(out, block), after
	}
	cutOff := bytes.HasPrefix(rest, []byte("-")) || bytes.Contains(rest, []byte("\n-"))
	if begun := bytes.Count(data, []byte("-----BEGIN ")); begun != len(out) || cutOff {
		return nil, fmt.Errorf("holds a PEM block that is damaged or cut off (after %d good ones)", len(out))
	}
	return out, nil
}

// readPEM returns the contents of the first block of the wanted kind.
func readPEM(path, kind, fix string) ([]byte, error) {
	data, err := readNamed(path, fix)
	if err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == kind {
			return block.Bytes, nil
		}
	}
	return nil, &Error{File: path, Problem: "holds no PEM block " + kind, Fix: fix}
}

// readCertificates returns all certificates of a file, in order.
func readCertificates(path string, most int, fix string) ([]*x509.Certificate, error) {
	data, err := readNamed(path, fix)
	if err != nil {
		return nil, err
	}
	certs, err := parseCertificates(data, most)
	if err != nil {
		return nil, &Error{File: path, Problem: err.Error(), Fix: fix}
	}
	return certs, nil
}

// readKey refuses a key that other users can read, because they could act as the member.
func readKey(path, fix string) (ed25519.PrivateKey, error) {
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
		return nil, &Error{
			File:    path,
			Problem: fmt.Sprintf("others may read this key (mode %04o)", info.Mode().Perm()),
			Fix:     "chmod 600 " + path + ", and if others have had access, have it revoked and replaced",
		}
	}
	der, err := readPEM(path, pemKey, fix)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, &Error{File: path, Problem: "holds a damaged key", Fix: fix, Err: err}
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, &Error{File: path, Problem: fmt.Sprintf("holds a %T; dcol uses ed25519", parsed), Fix: fix}
	}
	return key, nil
}

func encodeKey(key ed25519.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), nil
}

// createKey writes a key to a new file.
func createKey(path string, key ed25519.PrivateKey) error {
	data, err := encodeKey(key)
	if err != nil {
		return err
	}
	if err := durable.Create(path, data, 0o600); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return &Error{File: path, Problem: "a key", Err: ErrExists, Fix: "use it, or move it away"}
		}
		return err
	}
	return nil
}
