package e2e

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/lab/testbed"
)

// Made once for all tests, and not changed by them.
var (
	program  string // dcol
	static   string // a static program that fetches a URL
	webRoot  string // has the file that servers serve
	fileSum  [sha256.Size]byte
	cannot   string // why no test can run
	suiteDir string
)

// fileSize makes transfers last as long as tests need.
const fileSize = 32 << 20

func TestMain(m *testing.M) {
	testbed.Stage() // hosts and wires start as this executable
	// Otherwise hosts, emulators and dcol built with -race take a second each to exit.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	flag.Parse()
	// Tests mostly wait, so they need not share the processors one each.
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = f.Value.Set("6")
	}
	if err := prepareSuite(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(suiteDir)
		os.Exit(code)
	}))
}

func prepareSuite() (err error) {
	if os.Geteuid() != 0 {
		cannot = "needs root, for network namespaces"
		return nil
	}
	if _, err := os.Stat("/proc/sys/net/mptcp/enabled"); err != nil {
		cannot = "this kernel has no MPTCP"
		return nil
	}
	for _, name := range []string{"curl", "nginx", "iperf3", "nft", "conntrack", "tcpdump", "ip", "nstat", "setpriv", "socat", "openvpn"} {
		if _, err := exec.LookPath(name); err != nil {
			cannot = fmt.Sprintf("needs the program %s", name)
			return nil
		}
	}
	if suiteDir, err = os.MkdirTemp("", "dcol-e2e-"); err != nil {
		return err
	}
	// Tests of users without rights must get at the program.
	if err := os.Chmod(suiteDir, 0o755); err != nil {
		return err
	}
	if ready := os.Getenv("DCOL_TEST_BIN"); ready != "" {
		// scripts/test-kernels.sh runs the tests without Go.
		program, static = filepath.Join(ready, "dcol"), filepath.Join(ready, "fetch")
		return makeFile()
	}
	program, static = filepath.Join(suiteDir, "dcol"), filepath.Join(suiteDir, "fetch")
	flags := append([]string{"build"}, buildFlags...)
	if err := goBuild(append(flags, "-o", program, "../../cmd/dcol")); err != nil {
		return err
	}
	if err := os.Chmod(program, 0o755); err != nil { // whatever the umask is
		return err
	}
	if err := goBuild([]string{"build", "-o", static, "./testdata/fetch"}, "CGO_ENABLED=0"); err != nil {
		return err
	}
	return makeFile()
}

func goBuild(args []string, env ...string) error {
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %v: %w\n%s", args, err, out)
	}
	return nil
}

// makeFile writes noise, so that nothing can shorten it and every misplaced
// byte shows.
func makeFile() error {
	webRoot = filepath.Join(suiteDir, "www")
	if err := os.Mkdir(webRoot, 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(webRoot, "file"))
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(f, sum), rand.NewChaCha8([32]byte{'e', '2', 'e'}), fileSize); err != nil {
		return err
	}
	sum.Sum(fileSum[:0])
	return nil
}
