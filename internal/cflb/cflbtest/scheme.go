// Package cflbtest provides tests with the constants of a network of CFLB routers.
package cflbtest

import (
	"testing"

	"github.com/detour-collective/dcol/internal/cflb"
)

// Scheme returns a scheme that controls the ports of flows. All schemes of one cipher and radix are alike.
func Scheme(t testing.TB, c cflb.Cipher, radix int) *cflb.Scheme {
	t.Helper()
	p, err := cflb.NewPermutation(c, cflb.PortsOnly.Bits(), []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := cflb.New(radix, p)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
