package cc

import "testing"

// The verifier gives up after a million instructions. Kernels differ in how many they follow.
func TestVerifierHasRoom(t *testing.T) {
	for _, a := range Algorithms {
		for name, p := range registered(t, a).all.Programs {
			info, err := p.Info()
			if err != nil {
				t.Fatal(err)
			}
			if n, ok := info.VerifiedInstructions(); ok && n > 100_000 {
				t.Errorf("%s: the verifier follows %d instructions", name, n)
			}
		}
	}
}
