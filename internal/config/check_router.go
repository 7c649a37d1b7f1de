package config

import (
	"slices"

	"github.com/detour-collective/dcol/internal/tomlfile"
)

// routerCiphers lists the ciphers that a router's program can compute.
var routerCiphers = []string{"speck32", "skip32", "rc5"}

func (r *Router) check(p *tomlfile.Problems) {
	if r.Radix < 2 || r.Radix > 256 {
		p.At("router.radix", "must be from 2 to 256, not %d", r.Radix)
	}
	if !slices.Contains(routerCiphers, r.Cipher) {
		p.At("router.cipher", "%q is none of speck32, skip32 and rc5%s", r.Cipher, tomlfile.Nearest(r.Cipher, routerCiphers))
	}
	if r.SecretFile == "" {
		p.At("router.secret_file", "is missing: name the file with the secret that all routers and sources of the network share")
	}
}
