#!/usr/bin/env bash
# Runs the tests on Debian's kernels, each in a separate QEMU guest with software
# emulation:
#
#   scripts/test-kernels.sh [SERIES...]     such as 6.12; without one, all
#
# The guest's root is this machine's, read-only, below a layer in memory, so the tests
# use the programs installed here. Environment:
#   PACKAGES   packages for go test (default: those that involve the kernel)
#   RUN        only tests whose name matches, as for go test -run
#
# Kernels are kept in .cache/kernels, logs of the runs in out/kernels/SERIES:
# output.log (the tests), console.log and dmesg (the kernel).
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
PATH=$PATH:/usr/local/go/bin:/usr/local/sbin:/usr/sbin:/sbin

# Debian's release that has a kernel of the series.
declare -A release=([6.1]=bookworm [6.12]=trixie)
cache=$root/.cache/kernels
tests=$cache/tests
# An emulated processor is some ten times slower than a real one.
environment=(DCOL_TEST_BIN="$tests" DCOL_TEST_PATIENCE=5)
boot_limit=180    # seconds until the guest runs tests
test_limit=120m   # for one package
guest_limit=10800 # seconds for all packages

# shellcheck source=scripts/lib/messages.sh disable=SC1091
. scripts/lib/messages.sh

# apt_own runs an apt program with separate package lists. The host's do not change.
apt_own() {
	local program=$1
	shift
	"$program" -q -o Dir::State::lists="$cache/apt/lists" -o Dir::Cache="$cache/apt" \
		-o Dir::Etc::sourcelist="$cache/apt/sources.list" -o Dir::Etc::sourceparts=- \
		-o Acquire::Languages=none -o Acquire::Retries=3 -o APT::Sandbox::User=root "$@"
}

# mirror prints the Debian mirror that this host uses.
mirror() {
	local site
	# shellcheck disable=SC2016 # apt-get replaces them
	site=$(apt-get indextargets --format '$(LABEL) $(SITE)' 'Created-By: Packages' | awk '$1 == "Debian" {print $2; exit}')
	echo "${site:-http://deb.debian.org/debian}"
}

# fetch SERIES puts the newest kernel of a series into .cache, unless one is there.
fetch() {
	local series=$1 into=$cache/$1 version package work
	[[ ! -e $into/vmlinuz ]] || return 0
	say "fetching Debian's kernel $series (${release[$series]}), about 100 MB"
	rm -rf "$cache/apt" "$into"
	mkdir -p "$cache/apt/lists/partial" "$cache/apt/archives/partial"
	printf 'deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' \
		"$(mirror)" "${release[$series]}" >"$cache/apt/sources.list"
	apt_own apt-get update >&2
	# linux-image-amd64 depends on the newest kernel of its release.
	package=$(apt_own apt-cache depends linux-image-amd64 | awk '$1 == "Depends:" {print $2; exit}')
	[[ $package == linux-image-"$series".* ]] ||
		die "Debian's ${release[$series]} has no kernel $series, but ${package:-none}" \
			'name the release that has it in scripts/test-kernels.sh'
	work=$cache/apt/unpacked
	(cd "$cache/apt" && apt_own apt-get download "$package" >&2)
	dpkg -x "$cache/apt/$package"_*.deb "$work"
	version=${package#linux-image-}
	# Uncompressed, for busybox's insmod.
	find "$work" -name '*.ko.xz' -exec xz -d {} +
	mkdir -p "$work/lib/modules"
	[[ ! -d $work/usr/lib/modules ]] || mv "$work/usr/lib/modules/$version" "$work/lib/modules/"
	depmod -b "$work" "$version"
	mkdir "$into"
	mv "$work/lib/modules" "$into/"
	echo "$version" >"$into/version"
	mv "$work/boot/vmlinuz-$version" "$into/vmlinuz"
	rm -rf "$cache/apt"
}

# initramfs SERIES builds the guest's initial file system: busybox, init and the
# modules for mounting the root.
initramfs() {
	local kernel=$cache/$1 work=$cache/$1/initramfs version path
	version=$(<"$kernel/version")
	rm -rf "$work"
	mkdir -p "$work"/{bin,dev,proc,modules}
	cp /bin/busybox "$work/bin/"
	cp scripts/kernels/init "$work/init"
	mkdir -p "$work/lib"
	ln -s "$kernel/modules" "$work/lib/modules"
	for module in virtio_pci 9pnet_virtio 9p overlay; do
		modprobe -d "$work" -S "$version" --show-depends "$module"
	done | awk '$1 == "insmod" && !seen[$2]++ {print $2}' | while read -r path; do
		cp "$path" "$work/modules/"
		basename "$path"
	done >"$work/modules/order"
	rm "$work/lib/modules"
	(cd "$work" && find . | cpio -o -H newc --quiet) >"$kernel/initrd"
	rm -rf "$work"
}

# kernel_packages prints the packages whose tests depend on the kernel: those that import the lab's hosts, netlink
# or eBPF.
kernel_packages() {
	go list -test -f '{{if .ForTest}}{{.ForTest}}{{range .Deps}} {{.}}{{end}}{{end}}' ./internal/... ./lab/testbed ./lab/e2e |
		awk '/lab\/testbed|vishvananda\/netlink|cilium\/ebpf/ {print $1}' | sort -u
}

# build compiles the tests, because the guest has no Go.
build() {
	local folder name
	say 'building the tests'
	rm -rf "$tests"
	mkdir -p "$tests"
	# Not make's PACKAGES, which may have several patterns in one word.
	local -a patterns
	read -ra patterns <<<"${PACKAGES:-$(kernel_packages | tr '\n' ' ')}"
	export CGO_ENABLED=0
	go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' "${patterns[@]}" | while read -r folder; do
		folder=${folder#"$root"/}
		name=${folder//\//-}.test
		go test -c -o "$tests/$name" "./$folder"
		echo "$folder .cache/kernels/tests/$name"
	done >"$tests/list"
	[[ -s $tests/list ]] || die "no tests in ${patterns[*]}" 'see PACKAGES'
	if grep -q '^lab/e2e ' "$tests/list"; then
		go build -trimpath -o "$tests/dcol" ./cmd/dcol
		go build -trimpath -o "$tests/fetch" ./lab/e2e/testdata/fetch
	fi
}

qemu=
end_guest() {
	[[ -z $qemu ]] || kill "$qemu" 2>/dev/null || true
	[[ -z $qemu ]] || wait "$qemu" 2>/dev/null || true
	qemu=
}
trap end_guest EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# guest SERIES runs the tests on a kernel. It fails if a test failed.
guest() {
	local series=$1 kernel=$cache/$1 out=$root/out/kernels/$1 word arguments
	rm -rf "$out"
	mkdir -p "$out"
	cp "$tests/list" "$out/tests"
	cp scripts/kernels/run.sh "$out/"
	arguments=(-test.v -test.timeout="$test_limit" -test.parallel=3 -test.run="${RUN:-.}")
	{
		printf 'repository=%q\nmodules=%q\n' "$root" "$kernel/modules"
		printf 'environment=('
		printf '%q ' "${environment[@]}"
		printf ')\narguments=('
		printf '%q ' "${arguments[@]}"
		printf ')\n'
	} >"$out/job.sh"

	say "Linux $(<"$kernel/version"): booting"
	nice -n 10 qemu-system-x86_64 -no-user-config -nodefaults -no-reboot -display none \
		-accel tcg,thread=multi -cpu max -smp 2 -m 4G \
		-kernel "$kernel/vmlinuz" -initrd "$kernel/initrd" \
		-append 'console=ttyS0 panic=-1 loglevel=5 mitigations=off' \
		-virtfs local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap \
		-virtfs "local,path=$out,mount_tag=job,security_model=none" \
		-chardev "file,id=console,path=$out/console.log" -serial chardev:console \
		-chardev "stdio,id=output,logfile=$out/output.log" -serial chardev:output \
		-object rng-random,id=rng,filename=/dev/urandom -device virtio-rng-pci,rng=rng \
		</dev/null &
	qemu=$!
	local began=$SECONDS
	while kill -0 "$qemu" 2>/dev/null; do
		if [[ ! -e $out/started ]] && ((SECONDS - began > boot_limit)); then
			word="did not come up within $boot_limit s"
			break
		fi
		if ((SECONDS - began > guest_limit)); then
			word="was not done after $guest_limit s"
			break
		fi
		sleep 1
	done
	end_guest
	if [[ ! -e $out/status ]]; then
		tail -n 15 "$out/console.log" >&2
		die "the guest with Linux $(<"$kernel/version") ${word:-ended before its tests did}" \
			"its last words are above, all of them in out/kernels/$series/console.log"
	fi
	[[ $(<"$out/status") == 0 ]]
}

[[ $(uname -m) == x86_64 ]] || die "this machine is $(uname -m)" 'the kernels are for amd64: use such a machine'
[[ $(id -u) == 0 ]] || die 'only root can share its root with a guest' 'run this as root'
series=("$@")
[[ ${#series[@]} -gt 0 ]] || series=("${!release[@]}")
for one in "${series[@]}"; do
	[[ -n ${release[$one]-} ]] || die "no kernel series '$one'" "one of: ${!release[*]}"
done
build
failed=()
for one in "${series[@]}"; do
	fetch "$one"
	initramfs "$one"
	guest "$one" || failed+=("$one")
done
for one in "${series[@]}"; do
	printf '== Linux %s\n' "$(<"$cache/$one/version")"
	grep -aE '^ *(--- FAIL|ok  |FAIL [^(]+\()' "out/kernels/$one/output.log" || true
done
[[ ${#failed[@]} == 0 ]] || die "tests failed on Linux ${failed[*]}" 'see out/kernels/SERIES/output.log'
