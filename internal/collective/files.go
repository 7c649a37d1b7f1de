package collective

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	pemCertificate = "CERTIFICATE"
	pemKey         = "PRIVATE KEY"
	pemCRL         = "X509 CRL"

	// No file of ours comes near it; a wrong path (a disk image, /dev/zero) must not fill memory.
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

// readPEM returns the contents of the first block of the wanted kind.
func readPEM(path, kind, mend string) ([]byte, error) {
	data, err := readFile(path)
	if err != nil {
		problem := "cannot be read"
		if errors.Is(err, fs.ErrNotExist) {
			problem = "is missing"
		}
		return nil, &Error{File: path, Problem: problem, Mend: mend, Err: err}
	}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == kind {
			return block.Bytes, nil
		}
	}
	return nil, &Error{File: path, Problem: "holds no PEM block " + kind, Mend: mend}
}

func readCertificate(path, mend string) (*x509.Certificate, error) {
	der, err := readPEM(path, pemCertificate, mend)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, &Error{File: path, Problem: "holds a damaged certificate", Mend: mend, Err: err}
	}
	return cert, nil
}

// readKey refuses a key that others on the machine can read: whoever has it is the member.
func readKey(path, mend string) (ed25519.PrivateKey, error) {
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
		return nil, &Error{
			File:    path,
			Problem: fmt.Sprintf("others may read this key (mode %04o)", info.Mode().Perm()),
			Mend:    "chmod 600 " + path + ", and if others have had access, have it revoked and issued anew",
		}
	}
	der, err := readPEM(path, pemKey, mend)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, &Error{File: path, Problem: "holds a damaged key", Mend: mend, Err: err}
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, &Error{File: path, Problem: fmt.Sprintf("holds a %T; dcol uses ed25519", parsed), Mend: mend}
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

// writeFile replaces path in one step, so that an agent that reads it meanwhile sees the old or the new
// contents, never half of one.
func writeFile(path string, data []byte, mode os.FileMode) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
