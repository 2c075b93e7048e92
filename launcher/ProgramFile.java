package heddle;

import java.io.*;
import java.math.BigInteger;
import java.net.*;
import java.nio.file.*;
import java.nio.file.attribute.*;
import java.security.MessageDigest;
import java.util.*;
import java.util.jar.JarFile;

/**
 * The program that the launcher starts: that of HEDDLE_BINARY, the jar itself (a program with a jar appended), or a file
 * "heddle" beside the jar. One that is not executable is copied to a private cache, under its SHA-256 digest. A place where
 * it cannot be executed, or where other users can exchange folders, is passed over for the temporary folder.
 */
final class ProgramFile {
    private static final Set<PosixFilePermission> OWN = PosixFilePermissions.fromString("rwx------");

    static Path find() throws Exception {
        String named = System.getenv("HEDDLE_BINARY");
        if (named != null && !named.isEmpty()) {
            return executable(Paths.get(named), "HEDDLE_BINARY = " + named + " is not a file");
        }
        Path jar = jar();
        byte[] head = new byte[20];
        try (DataInputStream in = new DataInputStream(Files.newInputStream(jar))) {
            in.readFully(head);
        }
        if (head[0] != 0x7f || head[1] != 'E') {
            Path beside = jar.toAbsolutePath().resolveSibling("heddle");
            String missing = jar + " contains no program and " + beside + " does not exist; set HEDDLE_BINARY";
            return executable(beside, missing);
        }
        // e_machine of the ELF header: 62 is x86-64, 183 AArch64.
        String machine = System.getProperty("os.arch");
        if ((head[18] & 0xff | (head[19] & 0xff) << 8) != (machine.equals("aarch64") ? 183 : 62)) {
            throw new IOException("the program in " + jar + " is not for this machine (" + machine + ")");
        }
        return executable(jar, "");
    }

    /** The jar with this class. RunJar unpacks it and puts the folder first, so the class comes from the folder. */
    private static Path jar() throws Exception {
        List<URL> places = new ArrayList<>();
        places.add(ProgramFile.class.getProtectionDomain().getCodeSource().getLocation());
        ClassLoader loader = Thread.currentThread().getContextClassLoader();
        if (loader instanceof URLClassLoader) {
            places.addAll(Arrays.asList(((URLClassLoader) loader).getURLs()));
        }
        for (URL place : places) {
            File file = new File(place.getProtocol().equals("file") ? place.toURI().getPath() : "");
            if (file.isFile()) {
                try (JarFile jar = new JarFile(file)) {
                    if (jar.getEntry("heddle/Launcher.class") != null) {
                        return file.toPath();
                    }
                }
            }
        }
        throw new IOException("the jar is not on the class path; set HEDDLE_BINARY");
    }

    /** The program, or its copy in the cache if it cannot be executed where it is. */
    private static Path executable(Path program, String missing) throws Exception {
        if (!Files.isRegularFile(program)) {
            throw new IOException(missing);
        }
        if (Files.isExecutable(program)) {
            return program.toAbsolutePath();
        }
        String digest = digest(program);
        Object user = Files.getAttribute(Paths.get("/proc/self/"), "unix:uid");
        List<String> passedOver = new ArrayList<>();
        for (Path cache : caches(user)) {
            try {
                return copy(program, privateDir(cache, user), digest);
            } catch (FileSystemException unusable) {
                String reason = unusable.getReason();
                passedOver.add(cache + " (" + (reason == null ? unusable.getClass().getSimpleName() : reason) + ")");
            }
        }
        throw new IOException(program + " is not executable, and cannot be copied to " + String.join(" or ", passedOver)
            + "; make it executable, or set XDG_CACHE_HOME to a folder of your own");
    }

    private static String digest(Path file) throws Exception {
        MessageDigest sha = MessageDigest.getInstance("SHA-256");
        try (InputStream in = Files.newInputStream(file)) {
            byte[] bytes = new byte[1 << 16];
            for (int length = in.read(bytes); length > 0; length = in.read(bytes)) {
                sha.update(bytes, 0, length);
            }
        }
        return String.format("%064x", new BigInteger(1, sha.digest()));
    }

    /** The folders for copies, by preference. An empty variable counts as missing, a relative path is not used. */
    private static List<Path> caches(Object user) {
        List<Path> folders = new ArrayList<>();
        String cache = System.getenv("XDG_CACHE_HOME");
        String home = System.getenv("HOME");
        if (cache != null && cache.startsWith("/")) {
            folders.add(Paths.get(cache, "heddle"));
        } else if (home != null && home.startsWith("/") && Files.isDirectory(Paths.get(home))) {
            folders.add(Paths.get(home, ".cache", "heddle"));
        }
        folders.add(Paths.get(System.getProperty("java.io.tmpdir"), "heddle-" + user).toAbsolutePath());
        return folders;
    }

    /** The folder "bin" in a folder that no other user can change or rename. */
    private static Path privateDir(Path folder, Object user) throws IOException {
        Files.createDirectories(folder.getParent(), PosixFilePermissions.asFileAttribute(OWN));
        // Links above it are followed once, here.
        Path parent = folder.getParent().toRealPath();
        for (Path each = parent; each != null; each = each.getParent()) {
            // Without the sticky bit, who can write a folder can rename what is in it.
            if (isOfOthers(each, user, 01000)) {
                throw new FileSystemException(folder.toString(), null, "other users can change " + each);
            }
        }
        Path own = parent.resolve(folder.getFileName());
        Path bin = own.resolve("bin");
        for (Path each : new Path[] {own, bin}) {
            try {
                Files.createDirectory(each, PosixFilePermissions.asFileAttribute(OWN));
            } catch (FileAlreadyExistsException used) {
                if (isOfOthers(each, user, 0)) {
                    throw new IOException("other users can change the cache directory " + each + "; remove it");
                }
            }
        }
        return bin;
    }

    /** Whether another user than this one and root owns or can write a folder that has none of the bits "unless". */
    private static boolean isOfOthers(Path folder, Object user, int unless) throws IOException {
        Object owner = Files.getAttribute(folder, "unix:uid", LinkOption.NOFOLLOW_LINKS);
        int mode = (int) Files.getAttribute(folder, "unix:mode", LinkOption.NOFOLLOW_LINKS);
        // In a user namespace root may have another id.
        boolean trusted = owner.equals(user) || owner.equals(Files.getAttribute(Paths.get("/"), "unix:uid"));
        return !trusted || (mode & 022) != 0 && (mode & unless) == 0;
    }

    private static Path copy(Path program, Path folder, String digest) throws Exception {
        Path copy = folder.resolve("heddle-" + digest);
        if (Files.isRegularFile(copy) && Files.isExecutable(copy) && digest(copy).equals(digest)) {
            return copy;
        }
        Path part = Files.createTempFile(folder, ".", ".heddle", PosixFilePermissions.asFileAttribute(OWN));
        try {
            if (!Files.isExecutable(part)) {
                throw new FileSystemException(folder.toString(), null, "mounted with noexec");
            }
            Files.copy(program, part, StandardCopyOption.REPLACE_EXISTING);
            Files.setPosixFilePermissions(part, OWN);
            Files.move(part, copy, StandardCopyOption.ATOMIC_MOVE);
        } finally {
            Files.deleteIfExists(part);
        }
        return copy;
    }
}
