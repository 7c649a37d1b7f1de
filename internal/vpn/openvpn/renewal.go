package openvpn

import (
	"os"
	"time"
)

// renewal detects when a server must be restarted because its certificate was replaced: a running
// OpenVPN server never reads it again. (A client reads it whenever it connects.)
type renewal struct {
	read versions // read by the running openvpn
	seen versions // found by the last check
}

// versions holds the versions of the certificate, the key and the authority's certificate.
type versions [3]version

type version struct {
	size    int64
	changed time.Time
}

func (f Files) versions() (v versions) {
	for i, path := range []string{f.Certificate, f.Key, f.CA} {
		if info, err := os.Stat(path); err == nil {
			v[i] = version{size: info.Size(), changed: info.ModTime()}
		}
	}
	return v
}

// due reports whether the files have changed and are complete. Because they are replaced one by
// one, two successive checks must find the same versions.
func (r *renewal) due(now versions) bool {
	settled := now == r.seen
	r.seen = now
	for _, v := range now {
		if v == (version{}) {
			return false
		}
	}
	if !settled || now == r.read {
		return false
	}
	r.read = now
	return true
}
